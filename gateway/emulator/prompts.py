"""Prompts and answers without a tokenizer: counted, split into shareable pieces, made up (pure).

A token is 4 UTF-8 bytes, rounded up for each message, and a message's frame adds 4 tokens before
its text. A prompt is cut into pieces of 1,024 bytes a message, each hashed with all before it, so
prompts that begin alike share prefix-cache entries to 256 tokens (a real engine: to 16).
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import exp
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from gateway.core.types import PromptSegment

BYTES_PER_TOKEN = 4
FRAME_TOKENS = 4
PIECE_BYTES = 1024

MEDIAN_OUTPUT_TOKENS = 128
SD_LOG_OUTPUT = 0.9


class Prompt(NamedTuple):
    """A prompt as an engine sees it."""

    tokens: int
    prefix: tuple[PromptSegment, ...]
    """All of it, in pieces."""
    digest: int
    """Equal prompts have equal digests."""


def read_messages(messages: Iterable[tuple[str, str]]) -> Prompt:
    """Return the prompt that consists of these (role, text) messages."""
    chain = blake2b(digest_size=8)
    segments: list[PromptSegment] = []
    for role, text in messages:
        chain.update(f"\0{role}\0".encode())
        _add_text(segments, chain, text.encode(), FRAME_TOKENS)
    return _prompt(segments, chain)


def read_text(text: str) -> Prompt:
    """Return a bare prompt, without any frame."""
    chain = blake2b(digest_size=8)
    segments: list[PromptSegment] = []
    _add_text(segments, chain, text.encode(), 0)
    return _prompt(segments, chain)


def read_token_ids(token_ids: list[int]) -> Prompt:
    """Return a prompt that was tokenized by the client."""
    chain = blake2b(digest_size=8)
    segments: list[PromptSegment] = []
    step = PIECE_BYTES // BYTES_PER_TOKEN
    for start in range(0, len(token_ids), step):
        piece = token_ids[start : start + step]
        chain.update(repr(piece).encode())
        segments.append(PromptSegment(_key(chain), len(piece)))
    return _prompt(segments, chain)


def text_tokens(text: str) -> int:
    """Return how many tokens a text counts."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def _add_text(
    segments: list[PromptSegment], chain: blake2b, text: bytes, frame_tokens: int
) -> None:
    for start in range(0, max(len(text), 1), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        chain.update(piece)
        tokens = -(-len(piece) // BYTES_PER_TOKEN) + frame_tokens
        frame_tokens = 0
        segments.append(PromptSegment(_key(chain), tokens))


def _prompt(segments: list[PromptSegment], chain: blake2b) -> Prompt:
    tokens = sum(segment.tokens for segment in segments)
    return Prompt(max(tokens, 1), tuple(segments), _key(chain))


def _key(chain: blake2b) -> int:
    return int.from_bytes(chain.digest(), "big")


def natural_output_tokens(prompt: Prompt, choice: int, seed: int) -> int:
    """Return how long an answer to this prompt is if nobody says: log-normal, fixed by its hash."""
    drawn = blake2b(f"{prompt.digest}/{choice}/{seed}".encode(), digest_size=8)
    share = (_key(drawn) + 0.5) / 2**64
    return max(1, round(MEDIAN_OUTPUT_TOKENS * exp(SD_LOG_OUTPUT * NormalDist().inv_cdf(share))))


_WORDS = (
    "the a of in to and or not is are was for with from which how many what where when by per "
    "select count distinct average sum group order limit join table column row index key value "
    "question answer because therefore first then next finally plan step result check note so"
)
_PERIOD = 4096
"""Tokens after which the endless answer repeats itself."""
_TOKENS = [f"{word} " for word in Random(7).choices(_WORDS.split(), k=_PERIOD)]
_TEXT = "".join(_TOKENS * 2)
_STARTS = [0]
for _token in _TOKENS * 2:
    _STARTS.append(_STARTS[-1] + len(_token))


def answer_text(offset: int, start: int, end: int) -> str:
    """Return tokens [start, end) of the endless answer that begins at `offset`: a word each."""
    first = (offset + start) % _PERIOD
    rounds, rest = divmod(end - start, _PERIOD)
    text = _TEXT[_STARTS[first] : _STARTS[first + rest]]
    if rounds:
        whole = _TEXT[_STARTS[first] : _STARTS[first + _PERIOD]]
        text = whole * rounds + text
    return text
