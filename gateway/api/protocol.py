"""Protocol: uvicorn's HTTP/1.1 connection, with the gateway's errors and a way to be cut."""

import asyncio
import socket
from collections.abc import Iterable
from http import HTTPStatus

from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.api.asgi import RequestIds
from gateway.api.disconnect import PRESENCE, Presence
from gateway.api.door import ABORT, WRITE
from gateway.api.errors import ApiError, bad_request
from gateway.backends.base import Header

KEEP_ALIVE_IDLE_S = 60
KEEP_ALIVE_INTERVAL_S = 15
KEEP_ALIVE_PROBES = 4
"""A client that has vanished without a word, from a machine switched off, is noticed in 2 minutes:
after a minute of silence four probes are sent."""
UNACKNOWLEDGED_S = 60
"""Bytes that no machine takes for so long end the connection."""

_ids = RequestIds()


class OneWrite(RequestResponseCycle):
    """A request's way through the application, whose answer's head goes out with what follows it.

    uvicorn writes them apart and looks at each header by itself.
    """

    _head = b""

    async def send(self, message: ASGISendEvent) -> None:
        """Take a part of the answer."""
        if self.response_complete or self.scope["method"] == "HEAD":
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.response_started:
            self._go_on(message.get("body", b""), ends=not message.get("more_body", False))
        else:
            await super().send(message)

    def write(self, piece: bytes) -> bool:
        """Write a piece of an answer that has begun, without waiting; return if there is room."""
        if self.disconnected:
            return False
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
        if self.chunked_encoding is None and status not in (204, 304):
            self.chunked_encoding = True
            content.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(content)
        if head.count(b"\n") != len(content) or head.count(b"\r") != len(content):
            raise RuntimeError("a header of the answer has a line end in it")
        self._head = head + b"\r\n"

    def _go_on(self, body: bytes, *, ends: bool) -> None:
        head, self._head = self._head, b""
        if self.chunked_encoding:
            framed = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            self.transport.write(framed + b"0\r\n\r\n" if ends else framed)
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (ends and self.expected_content_length):
                raise RuntimeError("the answer is not as long as it says")
            self.transport.writelines((head, body))
        if ends:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()


class Protocol(HttpToolsProtocol):
    """One connection. `http=Protocol` in uvicorn's settings."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Have the kernel watch whether the client is still there."""
        super().connection_made(transport)
        self._presence = Presence()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _OPTIONS:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the client has gone."""
        super().connection_lost(exc)
        self._presence.gone()

    def on_message_begin(self) -> None:
        """Leave requests a way to cut their connection, and to hear of its end."""
        super().on_message_begin()
        state = self.scope["state"]
        state[ABORT] = self.transport.abort
        state[PRESENCE] = self._presence

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        cycle.__class__ = OneWrite  # uvicorn names its own class, and asks nobody
        assert isinstance(cycle, OneWrite)
        if cycle.scope["method"] != "HEAD":
            cycle.scope["state"][WRITE] = cycle.write
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in OpenAI's shape, and close."""
        self.refuse(bad_request(msg, code="invalid_http"))

    def refuse(self, error: ApiError) -> None:
        """Answer, whatever has or has not come, and close."""
        body = error.body()
        headers = [
            *(header for header in error.response_headers() if header[0] != b"connection"),
            (b"x-request-id", _ids.next().encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        line = b"HTTP/1.1 %d %b\r\n" % (error.status, HTTPStatus(error.status).phrase.encode())
        self.transport.write(line + head + b"\r\n" + body)
        self.transport.close()


_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
    )
    if hasattr(socket, name)
]
"""Linux has them all; elsewhere the kernel's own times hold."""
