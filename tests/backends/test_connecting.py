"""Engines to which no connection comes about: refused is dead, late may be us."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from gateway.backends.base import Call, ConnectFailed, Usage
from gateway.backends.dialects import dialect_of
from gateway.backends.http_client import HttpClient, Timeouts

pytestmark = pytest.mark.anyio


class Nobody:
    """Hears nothing."""

    def first_token(self) -> None:
        """Never told."""

    def progressed(self, output_tokens: int) -> None:
        """Never told."""

    def finished(self, usage: Usage) -> None:
        """Never told."""


@contextmanager
def a_full_port() -> Iterator[int]:
    """Listen, accept nobody, and have no place for anybody left: who connects hears nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port: int = server.getsockname()[1]
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", port))
            waiting.append(client)
        yield port
        for client in waiting:
            client.close()


async def suspected(port: int) -> bool:
    """Call an engine that cannot be reached; return whether it is thought to be dead."""
    heard: list[str] = []
    client = HttpClient(
        f"http://127.0.0.1:{port}",
        dialect_of("vllm", False, ()),
        Timeouts(connect_s=0.3),
        on_unreachable=lambda: heard.append("dead"),
    )
    with pytest.raises(ConnectFailed) as failed:
        await client.open(Call(path="/x", body=b"{}"), Nobody(), engine_priority=0, attempt=1)
    assert failed.value.retryable
    await client.close()
    return bool(heard)


async def test_an_engine_that_refuses_connections_is_dead() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]

    assert await suspected(port)


async def test_one_that_is_late_may_be_well() -> None:
    """When it is the gateway that was held up, all its connections are late at once."""
    with a_full_port() as port:
        assert not await suspected(port)
