"""Guard: how many connections there may be, how long a request's head may be and take.

A connection that breaks a limit is told so in OpenAI's shape, if it can be told, and closed. How
long bodies may be, and how slowly answers may be taken, is judged where they are read and sent.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from math import inf
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

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


class Guard(ABC):
    """A connection of uvicorn's server as its limits see it; whoever parses says what it awaits."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
    ) -> None:
        self.app: ASGIApp = config.loaded_app
        self.loop = loop
        self.server_state = server_state
        self.limits = limits
        self.expects_continue = False
        self._patience_s = {
            Awaited.REQUEST: float(config.timeout_keep_alive),
            Awaited.HEAD: limits.header_timeout_s,
            Awaited.BODY: limits.body_timeout_s,
            Awaited.ANSWER: inf,
        }
        self._awaited = Awaited.HEAD
        self._since = 0.0
        """When that began, or for a body when a piece of it came last."""
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def has_begun_to_answer(self) -> bool:
        """Return whether what is written now would stand inside an answer."""

    @abstractmethod
    def on_response_complete(self) -> None:
        """A request is answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Turn the connection away if there are too many."""
        connections = self.server_state.connections
        connections.add(cast(Any, self))
        self.transport = transport
        self.flow = FlowControl(transport)
        self._since = self.loop.time()
        if len(connections) > self.limits.max_connections:
            self.refuse(TOO_MANY)
        else:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more, and let who waits for room go on."""
        self._stop_looking()
        self.server_state.connections.discard(cast(Any, self))
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.flow.resume_writing()

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
        elif self._awaited is Awaited.BODY and not self.has_begun_to_answer():
            self.refuse(stalled())
        else:
            self.transport.close()

    def refuse_bytes(self) -> None:
        """Say that what came is no HTTP, unless it has been said what was wrong."""
        if not self.transport.is_closing():
            self.refuse(bad_request("Invalid HTTP request received.", code="invalid_http"))

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
