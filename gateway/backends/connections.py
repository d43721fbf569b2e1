"""Connections: those to one engine, idle ones kept for a while and used again."""

import asyncio
import ssl
from base64 import b64encode
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

from gateway.backends.base import ConnectFailed
from gateway.backends.connection import Connection

KEEP_ALIVE_S = 4.0
"""vLLM and TGI close idle connections after 5 s; a pooled one must be given up before that."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens, as its URL says."""

    host: str
    port: int
    is_tls: bool
    path: str
    """What the paths of its API begin with, no slash at its end."""
    authority: str
    """What goes into the `Host` header."""
    credentials: str
    """What goes into the `Authorization` header; empty: none."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Read an http or https URL; ValueError if it is none."""
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"{url} is not the URL of an engine")
        user = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            user = f"Basic {b64encode(pair.encode()).decode()}"
        return cls(
            host=parts.hostname,
            port=parts.port or _DEFAULT_PORTS[parts.scheme],
            is_tls=parts.scheme == "https",
            path=parts.path.rstrip("/"),
            authority=parts.netloc.rpartition("@")[2],
            credentials=user,
        )


class Connections:
    """All connections to one engine, on one event loop. As many as there are calls."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None) -> None:
        self._origin = origin
        self._tls = None
        if origin.is_tls:
            self._tls = tls or ssl.create_default_context()
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}
        """Since when each has been idle, the latest last."""
        self._sweeper: asyncio.TimerHandle | None = None

    def take_idle(self) -> Connection | None:
        """Return the connection that was used last, if any may be used again."""
        if not self._idle:
            return None
        connection, since = self._idle.popitem()
        if asyncio.get_running_loop().time() - since < KEEP_ALIVE_S:
            return connection
        connection.close()  # the sweeper is late; the others are older still
        self._close_idle()
        return None

    async def connect(self, within_s: float) -> Connection:
        """Return a new connection, or raise ConnectFailed."""
        loop, origin = asyncio.get_running_loop(), self._origin
        try:
            async with asyncio.timeout(within_s):
                connection = Connection(loop, self._lost)
                await loop.create_connection(
                    lambda: cast(asyncio.Protocol, connection),
                    origin.host,
                    origin.port,
                    ssl=self._tls,
                    server_hostname=origin.host if self._tls is not None else None,
                )
        except (OSError, TimeoutError, UnicodeError) as error:  # a TLS error is an OSError
            raise ConnectFailed(is_late=isinstance(error, TimeoutError)) from error
        if not connection.is_lost:  # a peer may hang up in the breath in which it answers
            self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next call if it can be used again; else close it."""
        if not connection.is_reusable:
            connection.close()
            return
        connection.rest()
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.time()
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEP_ALIVE_S, self._sweep)

    def close(self) -> None:
        """Close every connection, whatever is under way on it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._open):
            connection.close()

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def _close_idle(self) -> None:
        while self._idle:
            connection, _ = self._idle.popitem()
            connection.close()

    def _sweep(self) -> None:
        """Close what has been idle for too long. One timer, however many connections."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle:
            connection, since = next(iter(self._idle.items()))
            left_s = since + KEEP_ALIVE_S - loop.time()
            if left_s > 0:
                self._sweeper = loop.call_later(left_s, self._sweep)
                return
            del self._idle[connection]
            connection.close()
