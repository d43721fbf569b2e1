"""Streams that flow, and streams that are left: whatever happens, nothing of them is lost."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.backends.answers import StreamAnswer
from gateway.backends.base import (
    BackendError,
    EngineError,
    Listener,
    Shape,
    TimedOut,
    Usage,
)
from gateway.backends.connection import HIGH_BYTES, Connection
from gateway.backends.connections import Connections, Origin
from gateway.backends.relay import StreamRelay
from gateway.backends.shapes import RELAYS, RawRelay
from gateway.core.outcomes import FailureKind
from tests.backends.fake_backend import DONE, frame
from tests.backends.test_connection import CHUNKS, Wire, a_call
from tests.backends.test_relay import Ear
from tests.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.anyio
LAST_CHUNK = b"0\r\n\r\n"
FAILURE = b'data: {"error": {"message": "m", "code": 503}}\n\n'


def chunk(data: bytes) -> bytes:
    """Framed as engines do."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """A stream from an engine, and the client that it flows to."""

    def __init__(
        self,
        connection: Connection,
        wire: Wire,
        relay_of: type[StreamRelay] = RELAYS[Shape.CHOICES],
        listener: Listener | None = None,
        total_s: float = 600.0,
    ) -> None:
        self.connection = connection
        self.wire = wire
        self.ear = Ear()
        self.under_way: set[StreamAnswer] = set()
        self.answer = StreamAnswer(
            connection,
            Connections(Origin.of("http://h"), None),
            relay_of(listener or self.ear, hide_usage=False),
            30.0,
            asyncio.get_running_loop().time() + total_s,
            self.under_way,
        )
        self.written: list[bytes] = []
        self.has_room = True
        self.flowing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, piece: bytes) -> bool:
        """Take what the client is sent."""
        self.written.append(piece)
        return self.has_room

    def hears(self, *pieces: bytes) -> None:
        """The engine sends these in one packet."""
        self.connection.data_received(b"".join(map(chunk, pieces)))

    async def flow(self) -> None:
        """Begin to flow."""
        self.flowing = asyncio.ensure_future(self.answer.flow(self.write))
        await asyncio.sleep(0)

    async def stopped(self) -> None:
        """It flows no more, and that at once."""
        for _ in range(3):
            await asyncio.sleep(0)
        assert self.flowing.done()
        await self.flowing


async def a_stream(
    first: bytes = frame("a"),
    relay_of: type[StreamRelay] = RELAYS[Shape.CHOICES],
    listener: Listener | None = None,
    total_s: float = 600.0,
) -> Stream:
    """A stream whose first piece has been read."""
    connection, wire, _ = a_call()
    connection.data_received(CHUNKS + chunk(first))
    await connection.head()
    stream = Stream(connection, wire, relay_of, listener, total_s)
    await stream.answer.begin()
    assert await stream.answer.read() == first
    return stream


async def test_a_piece_is_written_while_it_is_received() -> None:
    stream = await a_stream()
    await stream.flow()

    stream.hears(frame("b"))
    assert stream.written == [frame("b")]
    stream.hears(frame("c"), frame("d")[:9])
    assert stream.written == [frame("b"), frame("c")]

    assert not stream.flowing.done()
    assert not stream.answer.is_held_up


async def test_what_came_before_it_flowed_is_written_first() -> None:
    stream = await a_stream()
    stream.hears(frame("b"))

    await stream.flow()
    stream.hears(frame("c"))

    assert stream.written == [frame("b"), frame("c")]


@pytest.mark.parametrize("came_before", [False, True])
async def test_the_last_piece_is_left_to_whoever_ends_the_answer(came_before: bool) -> None:
    stream = await a_stream()
    last = frame("b", "stop") + DONE
    if not came_before:
        await stream.flow()
    stream.connection.data_received(chunk(last) + LAST_CHUNK)
    if came_before:
        await stream.flow()

    await stream.stopped()

    assert stream.written == []
    assert not stream.answer.ended
    assert await stream.answer.read() == last
    assert stream.answer.ended
    assert len(stream.ear.ends) == 1
    await stream.answer.aclose()
    assert not stream.wire.is_cut


async def test_a_client_that_takes_no_more_holds_the_engine_back() -> None:
    stream = await a_stream()
    await stream.flow()
    stream.has_room = False
    stream.hears(frame("b"))
    stream.hears(frame("c"))

    await stream.stopped()
    assert stream.written == [frame("b")]
    assert stream.answer.is_held_up
    big = frame("d" * (HIGH_BYTES + 1))
    stream.hears(big)
    assert not stream.wire.reads

    assert await stream.answer.read() == frame("c") + big
    assert stream.wire.reads
    stream.has_room = True
    await stream.flow()
    stream.hears(frame("e"))
    assert stream.written == [frame("b"), frame("e")]


async def test_who_leaves_a_stream_that_flows_closes_it_and_hears_no_more() -> None:
    stream = await a_stream()
    await stream.flow()

    stream.flowing.cancel()
    stream.hears(frame("b"))  # before the task has run
    with pytest.raises(asyncio.CancelledError):
        await stream.flowing
    await stream.answer.aclose()

    assert stream.written == []
    assert stream.wire.is_cut
    assert not stream.under_way


async def test_a_failure_in_it_is_raised_by_the_next_read_after_what_came_before_it() -> None:
    stream = await a_stream()
    await stream.flow()

    stream.hears(frame("b"), FAILURE)
    await stream.stopped()

    assert await stream.answer.read() == frame("b")
    await stream.flow()
    await stream.stopped()
    with pytest.raises(EngineError, match="503"):
        await stream.answer.read()
    assert stream.written == []
    assert not stream.under_way


BREAKS: dict[str, Callable[[Connection], None]] = {
    "reset": lambda connection: connection.connection_lost(ConnectionResetError()),
    "closed": lambda connection: connection.eof_received(),
    "no HTTP": lambda connection: connection.data_received(b"junk"),
    "ended": lambda connection: connection.data_received(LAST_CHUNK),
}


@pytest.mark.parametrize("how", BREAKS)
async def test_an_engine_that_breaks_off_is_no_end(how: str) -> None:
    stream = await a_stream()
    await stream.flow()

    stream.hears(frame("b"))
    BREAKS[how](stream.connection)
    await stream.stopped()

    assert stream.written == [frame("b")]
    with pytest.raises(BackendError):
        await stream.answer.read()
    assert stream.ear.ends == []


@pytest.mark.parametrize("relay_of", [RawRelay, RELAYS[Shape.ANY]])
async def test_an_engine_that_closes_ends_what_has_no_other_end(
    relay_of: type[StreamRelay],
) -> None:
    stream = await a_stream(relay_of=relay_of)
    await stream.flow()

    stream.connection.data_received(chunk(frame("b")) + LAST_CHUNK)
    await stream.stopped()

    assert stream.written == [frame("b")]
    assert await stream.answer.read() == b""
    assert stream.answer.ended
    assert len(stream.ear.ends) == 1


class Broken(Ear):
    """A listener that fails."""

    def finished(self, usage: Usage) -> None:
        del usage
        raise ZeroDivisionError


async def test_what_breaks_while_it_is_received_is_raised_where_it_is_relayed() -> None:
    stream = await a_stream(listener=Broken())
    await stream.flow()

    stream.hears(frame("b", "stop") + DONE)

    with pytest.raises(ZeroDivisionError):
        await stream.flowing


def test_comments_are_no_progress_of_what_flows() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        stream = await a_stream()
        await stream.flow()
        for at in range(1, 50):
            loop.call_at(at * 1.0, stream.hears, frame("b") if at == 10 else b": still here\n\n")

        await stream.flowing

        assert loop.time() == 40.0
        with pytest.raises(TimedOut) as late:
            await stream.answer.read()
        assert late.value.kind is FailureKind.TIMEOUT_INTER_TOKEN
        assert stream.wire.is_cut

    run_in_virtual_time(main())


def test_a_stream_that_flows_for_too_long_is_ended() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        stream = await a_stream(total_s=45.0)
        await stream.flow()
        for at in range(1, 50):
            loop.call_at(at * 1.0, stream.hears, frame("b"))

        await stream.flowing

        assert loop.time() == 45.0
        with pytest.raises(TimedOut) as late:
            await stream.answer.read()
        assert late.value.kind is FailureKind.TIMEOUT_TOTAL

    run_in_virtual_time(main())


def test_the_time_that_a_client_takes_is_not_the_engines() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        stream = await a_stream()
        await stream.flow()
        stream.has_room = False
        loop.call_at(10.0, stream.hears, frame("b"))
        await stream.flowing

        await asyncio.sleep(500.0)
        stream.has_room = True
        await stream.flow()
        loop.call_later(29.0, stream.hears, frame("c"))
        await asyncio.sleep(29.5)

        assert stream.written == [frame("b"), frame("c")]
        assert not stream.flowing.done()
        stream.flowing.cancel()
        await stream.answer.aclose()

    run_in_virtual_time(main())


async def test_a_stream_that_is_cancelled_while_its_end_is_awaited_closes_its_connection() -> None:
    told = frame("hi", "stop") + DONE
    stream = await a_stream(told)  # the last chunk lacks

    leaving = asyncio.ensure_future(stream.answer.aclose())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    assert stream.wire.is_cut
    assert not stream.under_way
