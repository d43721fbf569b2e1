"""One connection: what it refuses, how much it reads ahead, when it is used again."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.backends.base import BadAnswer, ConnectionBroken
from gateway.backends.connection import HIGH_BYTES, MAX_HEAD_BYTES, MAX_INTERIM, Connection

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_cut = False
        self.reads = True

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent += data

    def abort(self) -> None:
        self.is_cut = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def a_call() -> tuple[Connection, Wire, list[Connection]]:
    """A connection on which a call has been sent, its wire, and where it is noted when lost."""
    lost: list[Connection] = []
    connection, wire = Connection(asyncio.get_running_loop(), lost.append), Wire()
    connection.connection_made(wire)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    return connection, wire, lost


async def heard(connection: Connection) -> bytes:
    """The body of an answer."""
    await connection.head()
    return await connection.read_all(100)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"HELLO\r\n\r\n", id="no HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
        pytest.param(b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n", id="another version"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: abc\r\n\r\n", id="no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nhi", id="a sign"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi", id="two"
        ),
        pytest.param(CHUNKS.replace(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n"), id="both"),
        pytest.param(CHUNKS.replace(b"chunked", b"gzip, chunked"), id="compressed chunks"),
        pytest.param(CHUNKS + b"2\r\nhixx0\r\n\r\n", id="junk behind a chunk"),
        pytest.param(CHUNKS + b"-2\r\nhi\r\n", id="a chunk of less than nothing"),
        pytest.param(
            b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", id="101"
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1), id="1xx without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES, id="a header without end"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * (MAX_HEAD_BYTES // 6), id="headers without end"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % (b"a" * MAX_HEAD_BYTES), id="too long a header"
        ),
    ],
)
async def test_what_is_no_answer_is_refused(wire: bytes) -> None:
    connection, transport, lost = a_call()

    for begin in range(0, len(wire), 1000):
        if not transport.is_cut:
            connection.data_received(wire[begin : begin + 1000])

    with pytest.raises(BadAnswer):
        await heard(connection)
    assert transport.is_cut
    assert lost == [connection]


@pytest.mark.parametrize("endless", [b"2;%b\r\nhi\r\n", b"0\r\nx: %b"])
async def test_what_stands_between_and_behind_chunks_has_a_bound(endless: bytes) -> None:
    connection, transport, _ = a_call()
    connection.data_received(CHUNKS)
    connection.data_received(endless.partition(b"%b")[0])

    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        if not transport.is_cut:
            connection.data_received(b"a" * 1000)

    with pytest.raises(BadAnswer):
        await connection.read()


async def test_many_small_chunks_cut_anywhere_are_no_flood() -> None:
    connection, _, _ = a_call()
    connection.data_received(CHUNKS)

    for _ in range(MAX_HEAD_BYTES // 5 + 1):
        for piece in (b"2\r\n", b"hi", b"\r\n"):
            connection.data_received(piece)
        await connection.read()
    connection.data_received(b"0\r\n\r\n")

    assert await connection.read() == b""
    assert connection.is_reusable


@pytest.mark.parametrize(
    ("wire", "is_reusable"),
    [
        pytest.param(OK, True, id="in order"),
        pytest.param(
            b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + OK, True, id="after an interim one"
        ),
        pytest.param(CHUNKS + b"2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n", True, id="with a trailer"),
        pytest.param(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), False, id="close"),
        pytest.param(OK.replace(b"1.1", b"1.0"), False, id="HTTP/1.0"),
        pytest.param(OK + OK, False, id="a second answer behind it"),
        pytest.param(OK + b"junk", False, id="junk behind it"),
    ],
)
async def test_a_connection_is_used_again_only_after_an_end_in_order(
    wire: bytes, is_reusable: bool
) -> None:
    connection, _, _ = a_call()

    connection.data_received(wire)

    await connection.head()
    assert await connection.read_all(100) == b"hi"
    assert connection.status == 200
    assert b"link" not in dict(connection.headers)
    assert b"x-sum" not in dict(connection.headers)
    assert connection.is_reusable == is_reusable


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    connection, _, _ = a_call()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nhi")
    assert not connection.is_complete

    connection.eof_received()

    assert await connection.read_all(100) == b"hi"
    assert not connection.is_reusable


@pytest.mark.parametrize("wire", [b"", OK[:9], OK[:-1], CHUNKS + b"2\r\nhi\r\n"])
async def test_an_end_before_the_end_is_told(wire: bytes) -> None:
    connection, _, _ = a_call()
    if wire:
        connection.data_received(wire)

    connection.eof_received()

    assert connection.has_answered == bool(wire)
    with pytest.raises(ConnectionBroken):
        await heard(connection)


async def test_an_engine_that_speaks_unasked_is_left() -> None:
    connection, transport, lost = a_call()
    connection.data_received(OK)
    connection.rest()

    connection.data_received(OK)

    assert transport.is_cut
    assert lost == [connection]


async def test_no_more_is_read_ahead_than_the_bound() -> None:
    connection, transport, _ = a_call()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n")

    connection.data_received(b"a" * (HIGH_BYTES + 1))

    assert not transport.reads
    assert len(await connection.read()) == HIGH_BYTES + 1
    assert transport.reads


async def test_no_more_is_sent_than_the_engine_takes() -> None:
    connection, transport, _ = a_call()
    begun: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            begun.append(number)
            yield b"abc"

    connection.pause_writing()
    connection.send_more(pieces(), is_chunked=True)
    await asyncio.sleep(0)
    assert begun == [0]

    connection.resume_writing()
    for _ in range(4):
        await asyncio.sleep(0)

    assert transport.sent.endswith(b"3\r\nabc\r\n" * 3 + b"0\r\n\r\n")


async def test_an_answer_that_comes_before_the_body_is_sent_ends_the_sending() -> None:
    connection, _, _ = a_call()
    never = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        await never.wait()

    connection.send_more(pieces(), is_chunked=False)
    await asyncio.sleep(0)
    connection.data_received(OK)

    assert await connection.read_all(100) == b"hi"
    assert not connection.is_reusable
    connection.close()


async def test_a_body_that_breaks_breaks_the_call() -> None:
    connection, transport, _ = a_call()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        raise ValueError("the client left")

    connection.send_more(pieces(), is_chunked=False)

    with pytest.raises(ConnectionBroken):
        await connection.head()
    assert transport.is_cut


async def test_a_call_on_a_connection_that_is_lost_already_is_told_so() -> None:
    connection, _, _ = a_call()
    connection.data_received(OK)
    connection.connection_lost(None)

    connection.send(b"GET / HTTP/1.1\r\n\r\n")

    with pytest.raises(ConnectionBroken):
        await connection.head()
