"""Whatever an engine sends, the gateway reads it as h11 does, or refuses it."""

import asyncio
import re
from itertools import pairwise
from typing import NamedTuple

import h11
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.base import BackendError
from gateway.backends.connection import Connection

REASON = re.compile(rb"^(HTTP/1\.[01] \d\d\d)[^\r\n]*", re.MULTILINE)


class Heard(NamedTuple):
    """A whole answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    is_cut = False

    def write(self, data: object) -> None:
        """Lose it."""

    def abort(self) -> None:
        """Note it."""
        self.is_cut = True

    def pause_reading(self) -> None:
        """Go on all the same."""

    def resume_reading(self) -> None:
        """Go on."""


def ours(pieces: list[bytes], *, ends: bool) -> tuple[Heard | str, bool]:
    """Return what our client hears, or what kind of failure; and whether it would go on."""
    loop = asyncio.new_event_loop()
    try:
        connection, wire = Connection(loop, lambda _: None), Wire()
        connection.connection_made(wire)
        connection.send(b"")
        for piece in pieces:
            if not wire.is_cut:
                connection.data_received(piece)
        if ends and not wire.is_cut:
            connection.eof_received()
        if not connection.is_complete and not wire.is_cut and not ends:
            return "waits", False

        async def hear() -> Heard:
            await connection.head()
            body = await connection.read_all(2**30)
            return Heard(connection.status, tuple(connection.headers), body)

        try:
            heard: Heard | str = loop.run_until_complete(hear())
        except BackendError as error:
            heard = type(error).__name__
        return heard, connection.is_reusable
    finally:
        loop.close()


def h11s(wire: bytes, *, ends: bool) -> tuple[Heard | str, bool]:
    """Return what h11 hears, or why nothing; and whether it would go on."""
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    peer.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    peer.send(h11.EndOfMessage())
    # Our parser lets blank lines lead an answer, and does not look at reasons.
    wire = REASON.sub(rb"\1 -", wire.lstrip(b"\r\n"))
    peer.receive_data(wire)
    if ends:
        peer.receive_data(b"")
    response: h11.Response | None = None
    body = b""
    try:
        while True:
            event = peer.next_event()
            if event is h11.NEED_DATA:
                return "waits", False
            if isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert response is not None
                goes_on = peer.their_state is h11.DONE and not peer.trailing_data[0].strip(b"\r\n")
                return Heard(response.status_code, tuple(response.headers), body), goes_on
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return "refused", False
    except h11.RemoteProtocolError:
        return "refused", False


def cut(wire: bytes, at: list[int]) -> list[bytes]:
    """Return it in pieces."""
    edges = [0, *sorted({edge for edge in at if 0 < edge < len(wire)}), len(wire)]
    return [wire[begin:end] for begin, end in pairwise(edges) if begin < end]


def chunked(body: bytes, edges: list[int], extension: bytes, trailer: bytes) -> bytes:
    """Return a body in chunks."""
    chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in cut(body, edges)]
    return b"".join([*chunks, b"0", extension, b"\r\n", trailer, b"\r\n"])


HEADERS = st.lists(
    st.sampled_from(
        [
            b"Content-Type: application/json\r\n",
            b"x-empty:\r\n",
            b"x-spaces:   a b\t\r\n",
            b"X-Twice: 1\r\nx-twice: 2\r\n",
            b"Connection: close\r\n",
            b"connection: keep-alive\r\n",
            b"x-high: \xc3\xab\r\n",
            b"Date: Mon, 30 Nov 2026 00:00:00 GMT\r\n",
        ]
    ),
    max_size=4,
).map(b"".join)
INTERIM = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"]
)
LINES = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 No\r\n", b"HTTP/1.1 200 \r\n", b"HTTP/1.0 200 OK\r\n"]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Answers as engines and proxies send them."""
    body = draw(st.binary(max_size=60))
    framing = draw(st.sampled_from(["length", "chunks", "end", "none"]))
    head = draw(LINES) + draw(HEADERS)
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if framing == "chunks":
        extension = draw(st.sampled_from([b"", b";a=b", b';a="b"']))
        trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
        pieces = chunked(body, draw(st.lists(st.integers(1, 60), max_size=3)), extension, trailer)
        return (
            head.replace(b"HTTP/1.0", b"HTTP/1.1") + b"Transfer-Encoding: chunked\r\n\r\n" + pieces
        )
    if framing == "end":
        return head + b"\r\n" + body
    return b"HTTP/1.1 204 No Content\r\n" + draw(HEADERS) + b"\r\n"


CUTS = st.lists(st.integers(1, 400), max_size=6)


@given(INTERIM, answers(), CUTS, st.booleans())
def test_good_answers_are_read_as_h11_reads_them(
    interim: bytes, answer: bytes, cuts: list[int], ends: bool
) -> None:
    wire = interim + answer

    heard, goes_on = ours(cut(wire, cuts), ends=ends)
    h11_heard, h11_goes_on = h11s(wire, ends=ends)

    assert heard == h11_heard
    assert h11_goes_on or not goes_on or b"HTTP/1.0" in wire  # which h11 never goes on with


ODD = st.sampled_from(
    [
        *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"0", b"f", b";", b"\x80", b"0\r\n\r\n"),
        *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n x: y", b"HTTP/1.1 "),
        *(b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Length: +3\r\n", b"-1", b"0x", b"_"),
    ]
)
SPOILS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), ODD | st.just(b"")), max_size=3)


def spoilt(wire: bytes, spoils: list[tuple[int, int, bytes]]) -> bytes:
    """Return it with bytes taken out and put in."""
    for at, taken, put in spoils:
        wire = wire[:at] + put + wire[at + taken :]
    return wire


@given(answers(), SPOILS, CUTS, st.booleans())
def test_spoilt_answers_are_read_as_h11_reads_them_or_refused(
    wire: bytes, spoils: list[tuple[int, int, bytes]], cuts: list[int], ends: bool
) -> None:
    wire = spoilt(wire, spoils)

    heard, goes_on = ours(cut(wire, cuts), ends=ends)
    h11_heard, h11_goes_on = h11s(wire, ends=ends)

    assert isinstance(heard, str) or heard == h11_heard
    assert h11_goes_on or not goes_on or b"HTTP/1.0" in wire  # which h11 never goes on with
