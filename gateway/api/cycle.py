"""Cycle: a request's way into the application, and its answer's way back."""

import asyncio
from collections.abc import Iterable

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.api.door import WRITE
from gateway.backends.base import Header


class Cycle(RequestResponseCycle):
    """uvicorn's, with less to do for each request.

    The answer's head goes out with what follows it, and an event is made only for who has to wait:
    most bodies are here before they are asked for.
    """

    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = None
    expected_content_length = 0
    news: asyncio.Event | None = None
    """Set when there is something new to receive, once somebody has had to wait for it."""
    _head = b""
    _has_told_end = False
    """Of the body."""

    def __init__(
        self, connection: HttpToolsProtocol, scope: HTTPScope, *, keep_alive: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.default_headers = connection.server_state.default_headers
        self.on_response = connection.on_response_complete
        self.waiting_for_100_continue = connection.expect_100_continue
        self.body = bytearray()
        self._tasks = connection.tasks
        self._task: asyncio.Task[None] | None = None

    def start(self, app: ASGI3Application, loop: asyncio.AbstractEventLoop) -> None:
        """Have the application answer, in a task that the server knows of until it ends."""
        self.scope["state"][WRITE] = self.write
        self._task = loop.create_task(self.run_asgi(app))
        self._tasks.add(self._task)

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Have the application answer. What it leaves undone is logged, and its client told."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException:
            self.logger.exception("Exception in ASGI application")
            await self._break_off()
        else:
            if not (self.response_complete or self.disconnected):
                self.logger.error("ASGI application returned before its answer was whole")
                await self._break_off()
        finally:
            del self.scope["state"][WRITE]  # else each held the other, until they are collected
            assert self._task is not None
            self._tasks.discard(self._task)

    async def _break_off(self) -> None:
        if self.response_started:
            self.transport.close()
        else:
            await self.send_500_response()

    # In

    async def receive(self) -> ASGIReceiveEvent:
        """Return what has come of the body, or that the client is not there any more."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not (self.disconnected or self.response_complete):
            if self.flow.read_paused:
                self.flow.resume_reading()
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

    async def send(self, message: ASGISendEvent) -> None:
        """Take a part of the answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
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
        if self.chunked_encoding and not self._head:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._go_on(piece, ends=False)
        return not self.flow.write_paused

    def _begin(self, status: int, headers: Iterable[Header]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        content = [STATUS_LINE[status]]
        closes = False
        for name, value in (*self.default_headers, *headers):
            content.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                self.chunked_encoding = False
                self.expected_content_length = int(value)
            elif name == b"transfer-encoding":
                self.chunked_encoding = True
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                closes = True
        if not self.keep_alive and not closes:
            content.append(b"connection: close\r\n")
        has_body = status not in (204, 304) and self.scope["method"] != "HEAD"
        if self.chunked_encoding is None and has_body:
            self.chunked_encoding = True
            content.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(content)
        if head.count(b"\n") != len(content) or head.count(b"\r") != len(content):
            raise RuntimeError("a header of the answer has a line end in it")
        self._head = head + b"\r\n"

    def _go_on(self, body: bytes, *, ends: bool) -> None:
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.transport.write(head)
        elif self.chunked_encoding:
            framed = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            self.transport.write(framed + b"0\r\n\r\n" if ends else framed)
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (ends and self.expected_content_length):
                raise RuntimeError("the answer is not as long as it says")
            self.transport.writelines((head, body))
        if ends:
            self.response_complete = True
            if self.news is not None:
                self.news.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
