"""Cycle: a request's way into the application, and its answer's way back."""

import asyncio
import logging
from collections.abc import Iterable

from starlette.types import Message, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.api.asgi import send_whole
from gateway.api.door import WRITE
from gateway.api.guard import Guard
from gateway.backends.base import Header

log = logging.getLogger("uvicorn.error")  # the server's, whose level its settings set

_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
"""Headers that say where an answer ends, or whether another one may follow."""


class Cycle:
    """One request, as ASGI has it, and what has become of it.

    The answer's head goes out with what follows it, and an event is made only for who has to wait:
    most bodies are here before they are asked for.
    """

    def __init__(self, connection: Guard, scope: Scope, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.body = bytearray()
        """What has come of it, and has not been received."""
        self.more_body = True
        self.news: asyncio.Event | None = None
        """Set when there is something new to receive, once somebody has had to wait for it."""
        self.response_started = False
        self.response_complete = False
        self._scope = scope
        self._connection = connection
        self._transport = connection.transport
        self._flow = connection.flow
        self._must_say_continue = connection.expects_continue
        self._has_told_end = False
        """Of the body."""
        self._is_head = scope["method"] == "HEAD"
        self._head = b""
        """Of the answer, until it goes out."""
        self._is_chunked: bool | None = None
        self._left_bytes = 0
        """Of an answer that has said how long it is."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have the application answer, in a task that the server knows of until it ends."""
        self._scope["state"][WRITE] = self.write
        self._task = self._connection.loop.create_task(self.run_asgi())
        self._connection.server_state.tasks.add(self._task)

    async def run_asgi(self) -> None:
        """Have the application answer. What it leaves undone is logged, and its client told."""
        try:
            await self._connection.app(self._scope, self.receive, self.send)
        except BaseException:
            log.exception("Exception in ASGI application")
            await self._break_off()
        else:
            if not (self.response_complete or self.disconnected):
                log.error("ASGI application returned before its answer was whole")
                await self._break_off()
        finally:
            del self._scope["state"][WRITE]  # else each held the other, until they are collected
            assert self._task is not None
            self._connection.server_state.tasks.discard(self._task)

    async def _break_off(self) -> None:
        if self.response_started:
            self._transport.close()
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            await send_whole(self.send, 500, headers, b"Internal Server Error")

    # In

    async def receive(self) -> Message:
        """Return what has come of the body, or that the client is not there any more."""
        if self._must_say_continue and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._must_say_continue = False
        if not (self.disconnected or self.response_complete):
            if self._flow.read_paused:
                self._flow.resume_reading()
            if not self.body and (self.more_body or self._has_told_end):
                await self._wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        self._has_told_end = not self.more_body
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait(self) -> None:
        if self.news is None:
            self.news = asyncio.Event()
        self.news.clear()
        await self.news.wait()

    # Out

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.response_started:
            if self.response_complete:
                raise RuntimeError("the application answers on behind its answer")
            self._go_on(message.get("body", b""), ends=not message.get("more_body", False))
        else:
            raise RuntimeError(f"the application sent {message['type']} out of order")

    def write(self, piece: bytes) -> bool:
        """Write a piece of an answer that has begun, without waiting; return if there is room."""
        if self.disconnected:
            return False
        if self._is_chunked and not self._head:
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._go_on(piece, ends=False)
        return not self._flow.write_paused

    def _begin(self, status: int, headers: Iterable[Header]) -> None:
        self.response_started = True
        self._must_say_continue = False
        told = [*self._connection.server_state.default_headers, *headers]
        closes = False
        for name, value in told:
            if name not in _FRAMING:
                continue
            if name == b"content-length":
                self._is_chunked = False
                self._left_bytes = int(value)
            elif name == b"transfer-encoding":
                self._is_chunked = True
            elif b"close" in value.lower():
                self.keep_alive = False
                closes = True
        if not self.keep_alive and not closes:
            told.append((b"connection", b"close"))
        has_body = status not in (204, 304) and not self._is_head
        if self._is_chunked is None and has_body:
            self._is_chunked = True
            told.append((b"transfer-encoding", b"chunked"))
        head = b"\r\n".join([STATUS_LINE[status][:-2], *map(b": ".join, told)])
        if head.count(b"\n") != len(told) or head.count(b"\r") != len(told):
            raise RuntimeError("a header of the answer has a line end in it")
        self._head = head + b"\r\n\r\n"

    def _go_on(self, body: bytes, *, ends: bool) -> None:
        head, self._head = self._head, b""
        if self._is_head:
            self._transport.write(head)
        elif self._is_chunked:
            framed = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            self._transport.write(framed + b"0\r\n\r\n" if ends else framed)
        else:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (ends and self._left_bytes):
                raise RuntimeError("the answer is not as long as it says")
            self._transport.writelines((head, body))
        if ends:
            self.response_complete = True
            if self.news is not None:
                self.news.set()
            if not self.keep_alive:
                self._transport.close()
            self._connection.on_response_complete()
