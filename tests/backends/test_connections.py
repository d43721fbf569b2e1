"""The pool: what is kept, for how long, and what comes of the rest."""

import asyncio

import pytest

from gateway.backends.base import ConnectFailed
from gateway.backends.connection import Connection
from gateway.backends.connections import KEEP_ALIVE_S, Connections, Origin
from tests.backends.fake_backend import FakeBackend, a_fake_backend, plain
from tests.backends.test_connection import OK, Wire
from tests.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.anyio
ASK = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ."""
    return "asyncio", {"use_uvloop": request.param}


async def asked(connections: Connections, connection: Connection) -> None:
    """Ask once and give the connection back."""
    connection.send(ASK)
    await connection.head()
    await connection.read_all(10_000)
    connections.give_back(connection)


def pool_of(engine: FakeBackend) -> Connections:
    """Connections to an engine."""
    return Connections(Origin.of(engine.url), None)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://h", Origin("h", 80, False, "", "h", "")),
        ("https://h/base/", Origin("h", 443, True, "/base", "h", "")),
        ("http://[::1]:8001", Origin("::1", 8001, False, "", "[::1]:8001", "")),
        ("http://a:b%2Fc@h:1", Origin("h", 1, False, "", "h:1", "Basic YTpiL2M=")),
    ],
)
def test_a_url_says_where_an_engine_is(url: str, origin: Origin) -> None:
    assert Origin.of(url) == origin


async def test_the_latest_connection_is_used_again() -> None:
    async with a_fake_backend(plain) as engine:
        connections = pool_of(engine)
        first, second = await connections.connect(5.0), await connections.connect(5.0)
        await asked(connections, first)
        await asked(connections, second)

        assert connections.take_idle() is second
        assert connections.take_idle() is first
        assert connections.take_idle() is None
        connections.close()


async def test_a_connection_that_the_engine_closes_is_not_used_again() -> None:
    async with a_fake_backend(plain) as engine:
        connections = pool_of(engine)
        connection = await connections.connect(5.0)
        await asked(connections, connection)

        connection.eof_received()

        assert connections.take_idle() is None


async def test_nobody_there_is_told_as_that() -> None:
    async with a_fake_backend(plain) as engine:
        connections = pool_of(engine)

    with pytest.raises(ConnectFailed):
        await connections.connect(5.0)


def test_idle_connections_are_closed_before_engines_close_them() -> None:
    async def story() -> None:
        connections = Connections(Origin.of("http://h"), None)
        loop = asyncio.get_running_loop()
        wires = []
        for _ in range(2):
            connection, wire = Connection(loop, lambda _: None), Wire()
            connection.connection_made(wire)
            connection.send(ASK)
            connection.data_received(OK)
            connections.give_back(connection)
            wires.append(wire)
            await asyncio.sleep(KEEP_ALIVE_S / 2)

        await asyncio.sleep(KEEP_ALIVE_S / 4)
        assert [wire.is_cut for wire in wires] == [True, False]

        await asyncio.sleep(KEEP_ALIVE_S / 2)
        assert [wire.is_cut for wire in wires] == [True, True]
        assert connections.take_idle() is None

    run_in_virtual_time(story())
