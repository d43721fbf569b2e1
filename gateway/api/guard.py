"""Guard: how many connections there may be, how long a request's head may be and take.

A connection that breaks a limit is told so in OpenAI's shape, if it can be told, and closed. How
long bodies may be, and how slowly answers may be taken, is judged where they are read and sent.
"""

import asyncio
import sys
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from math import inf

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.asgi import RequestIds, stalled
from gateway.api.errors import ApiError, bad_request


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may do."""

    max_connections: int
    max_header_bytes: int
    """Of a request's line and headers together, and of what stands behind a body's last chunk."""
    header_timeout_s: float
    """From a request's first byte, or the connection's start, to the end of its headers."""
    body_timeout_s: float
    """Between two pieces of a body."""


NO_LIMITS = ConnectionLimits(
    max_connections=sys.maxsize,
    max_header_bytes=sys.maxsize,
    header_timeout_s=inf,
    body_timeout_s=inf,
)
TOO_MANY = ApiError(
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    message="The gateway has too many connections.",
    type="overloaded_error",
    code="too_many_connections",
    should_retry=True,
    retry_after_s=1.0,
)
_ids = RequestIds()


class Awaited(Enum):
    """What a connection waits for."""

    REQUEST = "request"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


class Guard(HttpToolsProtocol):
    """A connection as its limits see it; whoever parses says what it waits for."""

    limits = NO_LIMITS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Turn the connection away if there are too many."""
        super().connection_made(transport)
        self._patience_s = {
            Awaited.REQUEST: float(self.timeout_keep_alive),
            Awaited.HEAD: self.limits.header_timeout_s,
            Awaited.BODY: self.limits.body_timeout_s,
            Awaited.ANSWER: inf,
        }
        self._awaited = Awaited.HEAD
        self._since = self.loop.time()
        """When that began, or for a body when a piece of it came last."""
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.max_connections:
            self.refuse(TOO_MANY)
        else:
            self._look()

    def _look(self) -> None:
        """Look whether it has waited for too long. One timer, however many requests and pieces.

        It is never late: what is waited for anew has at least the time between two looks.
        """
        self._timer = None
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self._awaited is Awaited.BODY and self.flow.read_paused:
            self._since = now  # it is we who do not read
        left_s = self._since + self._patience_s[self._awaited] - now
        if left_s > 0:
            look_in_s = min(left_s, *self._patience_s.values())
            self._timer = self.loop.call_later(look_in_s, self._look)
        else:
            self._end_waiting()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        if self._awaited is Awaited.HEAD:
            self.refuse(
                ApiError(
                    status=HTTPStatus.REQUEST_TIMEOUT,
                    message="The request's headers did not arrive in time.",
                    code="header_timeout",
                )
            )
        elif self._awaited is Awaited.BODY and not self.cycle.response_started:
            self.refuse(stalled())
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in OpenAI's shape, and close."""
        if not self.transport.is_closing():  # else it has been told what was wrong
            self.refuse(bad_request(msg, code="invalid_http"))

    def refuse_head(self) -> None:
        """Say that a head is too long."""
        error = bad_request(
            f"The request's headers are longer than {self.limits.max_header_bytes} bytes.",
            code="headers_too_large",
        )
        error.status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.refuse(error)

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
