"""Streams that are left: whatever cancels whom, their connections go back or are closed."""

import asyncio

import pytest

from gateway.backends.answers import StreamAnswer
from gateway.backends.base import Usage
from gateway.backends.connections import Connections, Origin
from gateway.backends.relay import ChoicesRelay
from tests.backends.fake_backend import DONE, frame
from tests.backends.test_connection import CHUNKS, a_call

pytestmark = pytest.mark.anyio


class Deaf:
    """Hears nothing."""

    def first_token(self) -> None:
        """See Listener."""

    def progressed(self, output_tokens: int) -> None:
        """See Listener."""

    def finished(self, usage: Usage) -> None:
        """See Listener."""


async def test_a_stream_that_is_cancelled_while_its_end_is_awaited_closes_its_connection() -> None:
    connection, wire, _ = a_call()
    told = frame("hi", "stop") + DONE
    connection.data_received(CHUNKS + b"%x\r\n%b\r\n" % (len(told), told))  # the last chunk lacks
    await connection.head()
    under_way: set[StreamAnswer] = set()
    pool = Connections(Origin.of("http://h"), None)
    ends_by = asyncio.get_running_loop().time() + 600
    relay = ChoicesRelay(Deaf(), hide_usage=False)
    answer = StreamAnswer(connection, pool, relay, 30.0, ends_by, under_way)
    await answer.begin()
    assert await answer.read() == told

    leaving = asyncio.ensure_future(answer.aclose())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    assert wire.is_cut
    assert not under_way
