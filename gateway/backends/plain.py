"""Chunks that add text and say nothing else, told from their bytes (pure).

Almost all chunks are such, and taking them apart would cost more than relaying them.
"""

from collections.abc import Callable

_TEXT = b'"delta":{"content":"'
_UNFINISHED = b'"finish_reason":null'


def is_plain_content(data: bytes) -> bool:
    """Whether a chunk adds text to one choice and says nothing else that is read here.

    In a text the quotes would be escaped, so none of this is found in one. False is no claim: such
    a chunk is taken apart.
    """
    at = data.find(_TEXT)
    return (
        at > 0
        and data[at + 20 : at + 21] != b'"'
        and data.count(b'"finish_reason":') == 1
        and _UNFINISHED in data
        and b'"usage":' not in data
        and b'"error"' not in data
        and data.endswith(b"}]}")
    )


class PlainChunks:
    """Knows the plain chunks of one stream by what they have in common before and behind the text.

    So a piece of many is told by looking at it as a whole, and at its texts alone.
    """

    __slots__ = ("_begin", "_end", "_next", "_renamed")

    def __init__(self) -> None:
        self._begin = b""
        """Of each chunk, up to its text."""
        self._next = b""
        """The blank line and the beginning of another one."""
        self._end = b""
        """Of each chunk, from its finish reason; the blank line too."""
        self._renamed = b""
        """The beginning as the client gets it."""

    def learn(self, raw: bytes, rename: Callable[[bytes], bytes] | None) -> None:
        """Take an event that is plain content: most that follow will look like it."""
        if self._begin and raw.startswith(self._begin) and raw.endswith(self._end):
            return
        text_at = raw.find(_TEXT) + len(_TEXT)
        end_at = raw.find(_UNFINISHED)
        begin = raw[:text_at]
        renamed = rename(begin) if rename is not None else begin
        is_like_others = begin.startswith(b"data: ") and raw.count(b"\n") == 2 and b"\r" not in raw
        if end_at < text_at or not is_like_others or (rename is not None and renamed == begin):
            return
        self._begin, self._next, self._renamed = begin, b"\n\n" + begin, renamed
        self._end = raw[end_at:]

    def first(self, piece: bytes) -> int:
        """Return how long the piece is up to the end of the first chunk with a text."""
        at = piece.find(_TEXT)
        end = piece.find(b"\n\n", at) if at >= 0 else -1
        return len(piece) if end < 0 else end + 2

    def reach(self, piece: bytes) -> int:
        """Return how much of the piece may be such chunks: up to the last that ends like them."""
        if not self._begin or not piece.startswith(self._begin):
            return 0
        at = piece.rfind(self._end)
        return 0 if at < 0 else at + len(self._end)

    def count(self, piece: bytes) -> int:
        """Return of how many such chunks the piece is made, and of nothing else.

        0 is no claim: it is taken apart. Whatever is counted, `is_plain_content` is true of each.
        """
        begin = self._begin
        if not begin or not piece.startswith(begin) or not piece.endswith(self._end):
            return 0
        size = len(begin)
        # Once the beginnings are gone there is little left to look through.
        rest = piece[size:].replace(self._next, b"\n\n")
        chunks = 1 + (len(piece) - size - len(rest)) // size
        # Each line feed belongs to an end, and all but the last end to a beginning: so every chunk
        # has one of both. What could stand across a beginning is looked for without its quote.
        is_plain = (
            rest.count(self._end) == chunks
            and rest.count(b"\n") == 2 * chunks
            and rest.count(b'finish_reason":') == chunks
            and rest[:1] != b'"'
            and b'\n\n"' not in rest
            and b'usage":' not in rest
            and b'error"' not in rest
            and b"\r" not in rest
        )
        return chunks if is_plain else 0

    def renamed(self, piece: bytes) -> bytes:
        """Return a piece that was counted, with the client's name for the model in each chunk."""
        rest = piece[len(self._begin) :]
        return self._renamed + rest.replace(self._next, b"\n\n" + self._renamed)
