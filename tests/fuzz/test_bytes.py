"""Any bytes at all, from clients and from engines: no crash, no hang, no byte lost or made up."""

import json
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.backends.base import Shape, Usage
from gateway.backends.relay import Renaming, StreamRelay
from gateway.backends.shapes import RELAYS
from gateway.backends.sse import SseDecoder
from tests.backends.fake_backend import DONE, ROLE, USAGE, frame
from tests.e2e.processes import a_fleet

PIECES = st.sampled_from(
    [
        ROLE,
        frame("漢🙂"),
        frame("a", "stop"),
        frame("a", "abort"),
        USAGE,
        DONE,
        b": hi\n\n",
        b"event: error\n",
        b'data: {"error": {"message": "x"}}\n\n',
        b'data: {"type": "response.completed", "response": {"id": "r", "status": "failed"}}\n\n',
        b'data: {"type": "message_stop"}\r\n\r\n',
        b'data: {"generated_text": "x", "details": {"prefill": 3}}\n\n',
        b"data: [" * 500,
        b"data\n",
        b"data:\r\r",
        b"\xef\xbb\xbf",
        b"\n\n",
        b'"model": "m1"',
    ]
)
WIRES = st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=12).map(b"".join)


class Silent:
    """A listener that believes everything, once."""

    def __init__(self) -> None:
        self.ends = 0

    def first_token(self) -> None:
        """Hear nothing."""

    def progressed(self, output_tokens: int) -> None:
        """Hear nothing."""

    def finished(self, usage: Usage) -> None:
        """Count the ends."""
        del usage
        self.ends += 1


@given(WIRES, st.lists(st.integers(0, 2000)))
def test_the_decoder_loses_no_byte(wire: bytes, cuts: list[int]) -> None:
    decoder = SseDecoder()
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    raws = [event.raw for begin, end in pairwise(edges) for event in decoder.feed(wire[begin:end])]
    last = decoder.finish()

    assert b"".join(raws) + (last.raw if last else b"") == wire


def relayed(shape: Shape, pieces: list[bytes], renaming: Renaming | None) -> tuple[bytes, str]:
    """Return what is passed on of a stream, and how it ends."""
    ear = Silent()
    relay: StreamRelay = RELAYS[shape](ear, hide_usage=False, renaming=renaming)
    passed = b""
    for piece in pieces:
        if not (relay.ended or relay.failure):
            passed += relay.feed(piece)
    if not (relay.ended or relay.failure):
        passed += relay.finish()
    # It ends once, in one way, and who listens hears of it exactly then.
    assert relay.ended != (relay.failure is not None)
    assert ear.ends == relay.ended
    return passed, "ended" if relay.ended else str(relay.failure)


@pytest.mark.parametrize("shape", list(Shape))
@given(wire=WIRES, cuts=st.lists(st.integers(0, 2000)))
def test_the_relay_passes_a_beginning_of_it_and_cuts_do_not_matter(
    shape: Shape, wire: bytes, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[begin:end] for begin, end in pairwise(edges)]

    passed, ending = relayed(shape, pieces, None)

    assert wire.startswith(passed)
    assert (passed, ending) == relayed(shape, [wire], None)
    assert relayed(shape, pieces, Renaming("m2", "m3")) == (passed, ending)


# Requests, at a real socket


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    folder = tmp_path_factory.mktemp("fleet")
    with a_fleet(folder, "A100-80G", speed=200.0) as url:
        yield int(url.rpartition(":")[2]), folder / "gateway.log"


BODY = json.dumps(
    {"model": "m1", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
).encode()
FORM = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm1\r\n--b--\r\n'
HEADS = [
    (b"POST /v1/chat/completions HTTP/1.1", b"content-type: application/json", BODY),
    (b"POST /v1/completions HTTP/1.1", b"content-encoding: gzip", BODY),
    (
        b"POST /v1/audio/transcriptions HTTP/1.1",
        b"content-type: multipart/form-data;boundary=b",
        FORM,
    ),
    (b"GET /v1/models/m1 HTTP/1.1", b"accept: */*", b""),
    (b"GET /v1/responses/resp_1 HTTP/1.1", b"x-request-id: 1", b""),
]
REQUESTS = [
    head + b"\r\nhost: x\r\n" + more + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for head, more, body in HEADS
]
SMUGGLED = [
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: xchunked\r\n",
    b"transfer-encoding : chunked\r\n",
    b"content-length: 5\r\n",
    b"content-length: +15\r\n",
    b"content-length: -1\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n",
    b"expect: 100-continue\r\n",
    b" folded\r\n",
    b"x-workflow-id: \xff\xfe\r\n",
    b"x-workflow-deadline-ms: 9999999999999999\r\n",
    b"x" * 9000,
    b"\x00\r\n",
    b"0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Good requests with something put in, left out or changed."""
    wire = draw(st.sampled_from(REQUESTS))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(wire)))
        end = min(begin + draw(st.integers(0, 8)), len(wire))
        if draw(st.booleans()):
            # Most is decided in the headers, at a line's end.
            begin = end = wire.find(b"\r\n", begin) + 2
        put = draw(st.one_of(st.sampled_from(SMUGGLED), st.binary(max_size=8)))
        wire = wire[:begin] + put + wire[end:]
    return wire


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(wire=st.one_of(requests(), st.binary(max_size=200)))
def test_any_request_is_answered_or_cut_off_at_once(gateway: tuple[int, Path], wire: bytes) -> None:
    """Case 108."""
    port, _ = gateway
    answer = exchange(port, wire)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in answer


def test_afterwards_all_is_well(gateway: tuple[int, Path]) -> None:
    port, log = gateway
    good = REQUESTS[0].replace(b"host: x", b"host: x\r\nconnection: close")

    assert b'"choices"' in exchange(port, good, shuts=False)
    said = log.read_text()
    assert "Traceback" not in said
    assert "never retrieved" not in said


def exchange(port: int, wire: bytes, *, shuts: bool = True) -> bytes:
    """Send bytes, and nothing after them; return all that comes back until the end."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        try:
            sock.sendall(wire)
            if shuts:
                sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                answer += piece
        except TimeoutError:
            raise
        except OSError:
            pass  # it was cut off, at whatever point
    return answer
