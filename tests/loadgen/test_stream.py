"""Tests of loadgen.stream."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stream import StreamWatch

WIRE = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b": keep-alive\n\n"
    b'data: {"choices":[{"delta":{"content":"one"}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":" two"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.sets(st.integers(1, len(WIRE) - 1)))
def test_it_does_not_matter_where_the_network_cuts(cuts: set[int]) -> None:
    watch = StreamWatch()
    for start, end in pairwise([0, *sorted(cuts), len(WIRE)]):
        watch.feed(WIRE[start:end], now=1.0)

    assert watch.is_complete
    assert watch.error is None
    assert (watch.prompt_tokens, watch.output_tokens) == (7, 2)
    assert watch.first_at == 1.0


def test_the_first_token_is_the_first_content_and_gaps_are_between_contents() -> None:
    watch = StreamWatch()
    for at, event in enumerate(WIRE.replace(b"\r", b"").split(b"\n\n")):
        watch.feed(event + b"\n\n", now=float(at))

    assert watch.first_at == 2.0
    assert watch.longest_gap_s == 1.0


@pytest.mark.parametrize(
    ("event", "error"),
    [
        pytest.param(b'{"error":{"code":503,"message":"busy"}}', "503", id="as vLLM says it"),
        pytest.param(b'{"error":"busy"}', "busy", id="as a string"),
        pytest.param(b"{", "bad_event", id="not JSON"),
        pytest.param(b"[1]", "bad_event", id="not an object"),
    ],
)
def test_an_error_in_the_stream_is_seen(event: bytes, error: str) -> None:
    watch = StreamWatch()
    watch.feed(b"data: " + event + b"\n\n", now=0.0)

    assert watch.error == error
