"""Proxy: TCP before an engine, with the network's and the engine's ways to go wrong.

It also keeps the journal: which attempt at which call reached the engine, and when.
"""

import asyncio
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, cycle
from types import TracebackType

MAX_HEAD = 64 * 1024
PIECE = 64 * 1024
SLOW_S = 0.05
GARBAGE = (
    b"\x16\x03\x01 this is no HTTP\r\n\r\n",
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"broken"',
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\x00\xff\xfe",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p/>",
    b"",
)
SICK = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
TAG = re.compile(rb"tag-[0-9a-z-]+")


class Mode(StrEnum):
    """What it does with connections."""

    PASS = "pass"
    RESET = "reset"
    """Every connection is reset, those there are and those that come."""
    BLACKHOLE = "blackhole"
    """Accepts, reads, and never answers; nothing reaches the engine."""
    GARBAGE = "garbage"
    """Answers calls with what is no answer."""
    SLOW = "slow"
    """Each piece of an answer takes a while."""
    SICK = "sick"
    """Every other /health fails; calls are served."""


@dataclass(slots=True)
class Attempt:
    """One call as it reached the engine."""

    tag: str
    upstream_id: str
    port: int
    at: float
    """On the event loop's clock."""
    answered_bytes: int = 0


class Proxy:
    """`async with Proxy(port, engine_port):` serves; `mode` may change at any time."""

    def __init__(self, port: int, engine_port: int) -> None:
        self.port = port
        self.engine_port = engine_port
        self.attempts: list[Attempt] = []
        self.mode = Mode.PASS
        self.garbage = cycle(GARBAGE)
        self.probes = count()
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.reset()
        await asyncio.sleep(0)  # their tasks see it

    def change(self, mode: Mode) -> None:
        """Behave like this from now on."""
        was, self.mode = self.mode, mode
        for link in list(self._links):
            if Mode.RESET in (mode, was) or was is Mode.BLACKHOLE:
                link.reset()
            elif mode is Mode.BLACKHOLE:
                link.doom()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._links.discard(link)
            link.reset()


class _Link:
    """One connection of the gateway, and the one to the engine that belongs to it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._engine: asyncio.StreamWriter | None = None
        self._answers: asyncio.Task[None] | None = None
        self._attempt: Attempt | None = None
        self._is_doomed = proxy.mode is Mode.BLACKHOLE

    def reset(self) -> None:
        """End both sides with a RST."""
        self._drop_engine()
        sock = self._writer.get_extra_info("socket")
        if not self._writer.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()

    def doom(self) -> None:
        """The gateway will hear nothing any more."""
        self._is_doomed = True
        self._drop_engine()

    async def run(self) -> None:
        """Pass requests on until somebody closes."""
        while True:
            if self._proxy.mode is Mode.RESET:
                return
            head = await self._reader.readuntil(b"\r\n\r\n")
            body = await self._reader.readexactly(_length(head))
            if self._is_doomed:
                await self._reader.read()  # until it gives up
                return
            if not await self._pass(head, body):
                return

    async def _pass(self, head: bytes, body: bytes) -> bool:
        """Handle one request; return whether the connection goes on."""
        proxy = self._proxy
        is_call = head.startswith(b"POST /v1/")
        if proxy.mode is Mode.SICK and head.startswith(b"GET /health") and next(proxy.probes) % 2:
            self._writer.write(SICK)
            return True
        if proxy.mode is Mode.GARBAGE and is_call:
            self._writer.write(next(proxy.garbage))
            with suppress(OSError):
                await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
            return False
        if self._engine is None:
            answers, self._engine = await asyncio.open_connection("127.0.0.1", proxy.engine_port)
            self._answers = asyncio.ensure_future(self._answer(answers))
        if is_call:
            tag = TAG.search(body)
            self._attempt = Attempt(
                tag[0].decode() if tag else "",
                _header(head, b"x-request-id"),
                proxy.port,
                asyncio.get_running_loop().time(),
            )
            proxy.attempts.append(self._attempt)
        else:
            self._attempt = None
        self._engine.write(head + body)
        await self._engine.drain()
        return True

    async def _answer(self, answers: asyncio.StreamReader) -> None:
        try:
            while piece := await answers.read(PIECE):
                if self._proxy.mode is Mode.SLOW:
                    await asyncio.sleep(SLOW_S)
                if self._attempt is not None:
                    self._attempt.answered_bytes += len(piece)
                self._writer.write(piece)
                await self._writer.drain()
            self._writer.close()
        except OSError:
            self.reset()

    def _drop_engine(self) -> None:
        if self._answers is not None:
            self._answers.cancel()
        if self._engine is not None:
            self._engine.transport.abort()


def _length(head: bytes) -> int:
    told = _header(head, b"content-length")
    return int(told) if told else 0


def _header(head: bytes, name: bytes) -> str:
    found = re.search(rb"\r\n" + name + rb":\s*([^\r\n]*)", head, re.IGNORECASE)
    return found[1].decode("latin-1") if found else ""
