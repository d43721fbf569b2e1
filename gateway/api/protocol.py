"""Protocol: uvicorn's HTTP/1.1 connection, with the gateway's errors and a way to be cut."""

import asyncio
import socket
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.asgi import RequestIds
from gateway.api.door import ABORT
from gateway.api.errors import ApiError, bad_request

KEEP_ALIVE_IDLE_S = 60
KEEP_ALIVE_INTERVAL_S = 15
KEEP_ALIVE_PROBES = 4
"""A client that has vanished without a word, from a machine switched off, is noticed in 2 minutes:
after a minute of silence four probes are sent."""
UNACKNOWLEDGED_S = 60
"""Bytes that no machine takes for so long end the connection."""

_ids = RequestIds()


class Protocol(HttpToolsProtocol):
    """One connection. `http=Protocol` in uvicorn's settings."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Have the kernel watch whether the client is still there."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _OPTIONS:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def on_message_begin(self) -> None:
        """Leave requests a way to cut their connection."""
        super().on_message_begin()
        self.scope["state"][ABORT] = self.transport.abort

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
