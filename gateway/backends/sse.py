"""SseDecoder: bytes in, whole server-sent events out, wherever the network cuts them."""

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Longest event relayed. The largest tool call fits; a stream without line ends does not."""


class SseOverflow(Exception):
    """An event is longer than the bound."""


class SseEvent(NamedTuple):
    """One event as it came, and what is in it."""

    raw: bytes
    """Every byte of it, comments, unknown fields and the closing blank line included."""
    data: bytes | None
    """Its data lines joined by line feeds; None when it has none, such as a comment."""
    name: bytes = b""
    """Its `event` field."""


class SseDecoder:
    """Cuts a byte stream into events by the grammar of the HTML standard.

    Lines end in LF, CRLF or CR, in any mixture; a byte order mark may lead. The concatenation of
    every event's `raw` and that of `finish()` is the input, byte for byte. Time is linear in the
    input however finely it is cut.
    """

    __slots__ = (
        "_at_start",
        "_data",
        "_held",
        "_held_bytes",
        "_line",
        "_max_bytes",
        "_name",
        "_skip_lf",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._held: list[bytes] = []
        """What earlier pieces brought of the event under way."""
        self._held_bytes = 0
        self._line: list[bytes] = []
        """What earlier pieces brought of the line under way."""
        self._data: list[bytes] = []
        self._name = b""
        self._at_start = True
        self._skip_lf = False
        """The last piece ended in CR: a LF at the start of the next belongs to it."""

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Return the events that `piece` completes."""
        if not piece:
            return []
        if self._is_plain(piece):
            return [SseEvent(b"%b\n\n" % raw, raw[6:]) for raw in piece[:-2].split(b"\n\n")]
        events: list[SseEvent] = []
        lines = piece.splitlines(keepends=True)
        begin = end = 0
        if self._skip_lf and piece[0] == 0x0A:
            del lines[0]
            end = 1
        self._skip_lf = piece[-1] == 0x0D
        for line in lines:
            end += len(line)
            if line[-1] not in b"\r\n":
                self._line.append(line)
                break
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._line.clear()
            if self._ends_event(line.rstrip(b"\r\n")):
                is_all = end - begin == len(piece)
                events.append(self._event(piece if is_all else piece[begin:end]))
                begin = end
        if begin < len(piece):
            self._held.append(piece[begin:])
            self._held_bytes += len(piece) - begin
            if self._held_bytes > self._max_bytes:
                raise SseOverflow(f"an event is longer than {self._max_bytes} bytes")
        return events

    @property
    def is_between_events(self) -> bool:
        """The stream has begun, and the next byte begins a line and an event, whatever it is."""
        return not (self._held or self._at_start or self._skip_lf)

    def _is_plain(self, piece: bytes) -> bool:
        """Whether this is whole events of one `data: ` line each, as almost all pieces are."""
        if not self.is_between_events:
            return False
        lines = piece.count(b"\n")
        return (
            piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and b"\r" not in piece
            # Between two events there is a blank line, and nothing else ends a line.
            and lines == 2 * (piece.count(b"\n\ndata: ") + 1)
        )

    def finish(self) -> SseEvent | None:
        """Return what the stream ended in without a blank line, as the event it would be."""
        if not self._held:
            return None
        self._ends_event(b"".join(self._line))
        self._line.clear()
        return self._event(b"")

    def _ends_event(self, line: bytes) -> bool:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            return True
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ")
        elif line == b"data":
            self._data.append(b"")
        return False

    def _event(self, tail: bytes) -> SseEvent:
        raw = tail
        if self._held:
            self._held.append(tail)
            raw = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
        data = b"\n".join(self._data) if self._data else None
        event = SseEvent(raw, data, self._name)
        self._data.clear()
        self._name = b""
        return event
