"""Text of a given length: the same text for the same name, so that prefix caches hit (pure).

Tokens are estimated as UTF-8 bytes / 4 plus a few for each message's frame, as an emulated
engine counts them; a real tokenizer will count this English-like text about 20 % lower.
"""

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from zlib import crc32

BYTES_PER_TOKEN = 4
FRAME_TOKENS = 4
"""What the chat template adds around a message."""

_VOCABULARY = """
    select count distinct average sum group order limit join inner left outer table column row
    index key value null integer text date real schema question evidence hint example answer
    query error result unit test candidate plan step account loan client card district branch
    customer product race driver season circuit lap qualify points standing constructor student
    school enroll charter funding county patient diagnosis laboratory molecule atom bond gene
    league player team match goal attribute superhero power alignment publisher colour gender
    the a of in to and or not is are was for with from which how many what where when by per each
"""
_POOL = " ".join(Random(20250505).choices(_VOCABULARY.split(), k=16_000))


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: the tokens [start, end) of the endless text called `text`."""

    role: str
    text: str
    start: int
    end: int
    is_private: bool
    """Only this workflow sends it: a run adds its own id, lest caches of earlier runs hit."""


def messages(pieces: tuple[Piece, ...], run_id: str) -> list[dict[str, str]]:
    """Return the chat messages of a call in one run."""
    return [
        {
            "role": piece.role,
            "content": _content(
                f"{run_id} {piece.text}" if piece.is_private else piece.text, piece.start, piece.end
            ),
        }
        for piece in pieces
    ]


def pieces_of(
    *, template: str | None, template_tokens: int, prompt_tokens: int, call_id: str, is_shared: bool
) -> tuple[Piece, ...]:
    """Return a prompt as a shared system message and a user message of its own."""
    rest = Piece("user", call_id, 0, prompt_tokens - template_tokens, is_private=True)
    if template is None or template_tokens <= FRAME_TOKENS:
        return (Piece("user", call_id, 0, prompt_tokens, is_private=True),)
    system = Piece("system", template, 0, template_tokens, is_private=not is_shared)
    return (system, rest) if rest.end > 0 else (system,)


def conversation(text: str, ends: tuple[int, ...], *, is_shared: bool) -> tuple[Piece, ...]:
    """Return a conversation so far: user and assistant in turn, a message up to each of `ends`."""
    starts = (0, *ends[:-1])
    return tuple(
        Piece(("user", "assistant")[number % 2], text, start, end, is_private=not is_shared)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


@lru_cache(maxsize=128)
def _content(name: str, start: int, end: int) -> str:
    """Return a slice of the endless text that begins with its name.

    The frame is taken off each message's end, so that equal starts stay equal prefixes.
    """
    first = BYTES_PER_TOKEN * start
    last = first + BYTES_PER_TOKEN * max(end - start - FRAME_TOKENS, 1)
    head = f"[{name}] "
    offset = crc32(name.encode()) % len(_POOL)
    repeats = 2 + last // len(_POOL)
    return (head + (_POOL * repeats)[offset : offset + last])[first:last]
