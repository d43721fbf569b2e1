"""Pieces of many chunks are told from their bytes as chunk by chunk, whatever is among them."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.base import Usage
from gateway.backends.plain import PlainChunks, is_plain_content
from gateway.backends.relay import ChoicesRelay, Renaming, StreamRelay
from gateway.core.lengths import EDGES
from tests.backends.fake_backend import DONE, ROLE, USAGE, frame

BEGIN = b'data: {"id":"x","model":"m1","choices":[{"index":0,"delta":{"content":"'
END = b'"},"logprobs":null,"finish_reason":null}]}\n\n'


def chunk(text: bytes = b"hi") -> bytes:
    """An ordinary one."""
    return BEGIN + text + END


class Ear:
    """A listener that remembers what it was told, in order."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def first_token(self) -> None:
        self.heard.append("first")

    def progressed(self, output_tokens: int) -> None:
        self.heard.append(output_tokens)

    def finished(self, usage: Usage) -> None:
        self.heard.append(usage)

    def latest(self) -> list[object]:
        """What was told, of progress only the length bucket that was reached last."""
        buckets = [bisect_right(EDGES, one) for one in self.heard if isinstance(one, int)]
        return [*(one for one in self.heard if not isinstance(one, int)), *buckets[-1:]]


def relayed(
    feed: Callable[[ChoicesRelay, bytes], bytes],
    pieces: list[bytes],
    renaming: Renaming | None,
    *,
    hides: bool,
) -> list[object]:
    """Return what is passed on and known after each piece, and what was told by then."""
    ear = Ear()
    relay = ChoicesRelay(ear, hide_usage=hides, renaming=renaming)
    seen: list[object] = []
    for piece in pieces:
        if relay.ended or relay.failure:
            break
        passed = feed(relay, piece)
        facts = (relay.data_events, relay.usage, relay.finish_reason, relay.ended)
        seen.append((passed, facts, str(relay.failure), ear.latest()))
    if not (relay.ended or relay.failure):
        seen.append((relay.finish(), relay.usage, str(relay.failure), ear.latest()))
    return seen


TEXTS = st.sampled_from(
    [b"hi", b" ", b"", b"\\n", b'\\"usage\\":', b"an error", b'usage":1,"a":"', b'"error":"', b"\r"]
)
OTHERS = st.sampled_from(
    [
        ROLE,
        USAGE,
        DONE,
        frame("a"),
        frame("b", "stop"),
        b": still here\n\n",
        b"\n",
        chunk().replace(b"null}]}", b'"stop"}]}'),
        chunk().replace(b'"logprobs"', b'"finish_reason":"stop"},{"logprobs"'),
        chunk().replace(b'"logprobs":null,', b'"logprobs":null}],"error":{},"more":[{'),
        chunk().replace(b',"finish_reason":null', b""),
        chunk().replace(b'"content":"hi"', b'"content":null'),
        chunk().replace(b"}]}", b'}],"usage":{"completion_tokens":4}}'),
        chunk().replace(b'"m1"', b'"m2"'),
        chunk().replace(b"\n", b"\r\n"),
        chunk().replace(b"\n\n", b"\r\r"),
        chunk().replace(b"\n\n", b"\nid: 7\n\n"),
        b"event: x\n" + chunk(),
        b"data: {}\n" + chunk(),
        chunk() + BEGIN,
        BEGIN + b"hi\n" + END,
    ]
)
RUNS = st.integers(1, 40).map(lambda number: chunk() * number)
STREAMS = st.lists(st.one_of(TEXTS.map(chunk), RUNS, OTHERS), max_size=12)


@given(
    STREAMS,
    st.sampled_from([[], [chunk()]]),
    st.lists(st.integers(0, 2000), max_size=4),
    st.sampled_from([None, Renaming("m1", "m0"), Renaming("m2", "m0")]),
    st.booleans(),
)
def test_what_passes_and_what_is_told_is_the_same_as_chunk_by_chunk(
    stream: list[bytes],
    first: list[bytes],
    cuts: list[int],
    renaming: Renaming | None,
    hides: bool,
) -> None:
    wire = b"".join(stream)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    rest = [wire[begin:end] for begin, end in pairwise(edges)]
    pieces = [*first, *(piece for piece in rest if piece)]

    together = relayed(ChoicesRelay.feed, pieces, renaming, hides=hides)

    assert together == relayed(StreamRelay.feed, pieces, renaming, hides=hides)


def known() -> PlainChunks:
    """Ordinary chunks are known."""
    plain = PlainChunks()
    plain.learn(chunk(), None)
    return plain


@pytest.mark.parametrize("number", [1, 2, 200])
def test_ordinary_chunks_are_counted_without_taking_them_apart(number: int) -> None:
    assert known().count(chunk() * number) == number
    assert is_plain_content(chunk()[6:-2])


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda piece: piece[:-1],
    "begun anew": lambda piece: piece + BEGIN,
    "ended": lambda piece: piece + DONE,
    "ends": lambda piece: piece.replace(b"null}", b'"stop"}', 1),
    "another begin": lambda piece: piece + chunk().replace(b'"x"', b'"y"'),
    "counted": lambda piece: piece.replace(b'"logprobs":null', b'"usage":{}', 1),
    "no text": lambda piece: chunk(b"") + piece,
    "no text further on": lambda piece: piece + chunk(b""),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_pieces_of_anything_else_are_not(spoil: Callable[[bytes], bytes]) -> None:
    assert known().count(spoil(chunk() * 3)) == 0


def test_progress_is_told_at_edges_and_of_what_comes_at_once_only_how_far_it_goes() -> None:
    ear, other = Ear(), Ear()
    relay, at_once = (ChoicesRelay(one, hide_usage=False) for one in (ear, other))

    for _ in range(200):
        relay.feed(chunk())
    at_once.feed(chunk())
    at_once.feed(chunk() * 199)
    at_once.feed(chunk())

    assert ear.heard == ["first", *(int(edge) for edge in EDGES if 1 < edge <= 200)]
    assert other.heard == ["first", 200]
    assert (relay.usage, at_once.usage) == (Usage(200), Usage(201))


def test_of_a_whole_stream_in_one_piece_only_its_ends_are_taken_apart() -> None:
    stop = chunk(b"").replace(b"null}]}", b'"stop"}]}')
    wire = ROLE + chunk() * 200 + stop + USAGE + DONE
    plain = known()

    rest = wire[plain.first(wire) :]

    assert rest == chunk() * 199 + stop + USAGE + DONE
    assert plain.reach(rest) == len(chunk() * 199)
    assert plain.reach(wire) == 0
    assert plain.first(DONE) == len(DONE)


def test_an_alias_stands_in_every_chunk_of_a_piece() -> None:
    relay = ChoicesRelay(Ear(), hide_usage=False, renaming=Renaming("m1", "m0"))

    relay.feed(chunk())
    passed = relay.feed(chunk() * 3)

    assert passed == chunk().replace(b'"m1"', b'"m0"') * 3
