"""The decoder finds the same events wherever the network cuts, and loses no byte."""

from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.backends.sse import SseDecoder, SseEvent, SseOverflow

WIRE = (
    '\ufeffdata: {"a": "漢字🙂é"}\n\n'
    ": keep-alive\n\n"
    "event: message\r\nid: 7\r\nretry: 1000\r\ndata:no space\r\n\r\n"
    "data: one\rdata: two\r\r"
    "\n"
    'event: error\ndata: {"error": 1}\n\n'
    "data\n\n"
    "data:  two spaces\n\n"
    "data: [DONE]\n\n"
).encode()
DATA = [
    ('{"a": "漢字🙂é"}'.encode(), b""),
    (b"no space", b"message"),
    (b"one\ntwo", b""),
    (b'{"error": 1}', b"error"),
    (b"", b""),
    (b" two spaces", b""),
    (b"[DONE]", b""),
]


def decode(pieces: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    last = decoder.finish()
    return [*events, last] if last else events


def with_data(events: list[SseEvent]) -> list[tuple[bytes, bytes]]:
    return [(event.data, event.name) for event in events if event.data is not None]


@given(st.sets(st.integers(1, len(WIRE) - 1)))
@example(set(range(1, len(WIRE))))
def test_it_does_not_matter_where_the_network_cuts(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(WIRE)]
    events = decode([WIRE[a:b] for a, b in pairwise(edges)])

    assert with_data(events) == DATA
    assert b"".join(event.raw for event in events) == WIRE


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\r", b"\n", b"data:", b"\r\n", b":"])))
def test_no_byte_is_lost_of_whatever_comes(pieces: list[bytes]) -> None:
    assert b"".join(event.raw for event in decode(pieces)) == b"".join(pieces)


@given(st.lists(st.sampled_from([b"\r", b"\n", b"data: x", b"\r\n", b":c", b"event: e"])))
def test_cutting_at_each_byte_changes_no_event(pieces: list[bytes]) -> None:
    wire = b"".join(pieces)
    assert with_data(decode([wire])) == with_data(decode([bytes([byte]) for byte in wire]))


def test_an_event_is_given_out_with_its_blank_line_and_not_before() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\ndata: b") == [SseEvent(b"data: a\n\n", b"a")]
    assert decoder.finish() == SseEvent(b"data: b", b"b")


def test_a_whole_event_is_passed_on_without_a_copy() -> None:
    piece = b"data: a\n\n"
    assert SseDecoder().feed(piece)[0].raw is piece


def test_four_megabytes_in_small_pieces_take_linear_time() -> None:
    event = b"data: " + b"x" * 4_000_000 + b"\n\n"
    decoder = SseDecoder()

    started = perf_counter()
    events = [e for i in range(0, len(event), 1024) for e in decoder.feed(event[i : i + 1024])]

    assert [e.raw for e in events] == [event]
    assert perf_counter() - started < 1.0


def test_an_endless_line_is_refused() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"data: " + b"x" * 900)

    with pytest.raises(SseOverflow):
        decoder.feed(b"x" * 100)
