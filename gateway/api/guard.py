"""Guarded connections: how many there may be, how long a request's head may be and take.

A connection that breaks a limit is told so in OpenAI's shape, if it can be told, and closed. How
long bodies may be, and how slowly answers may be taken, is judged where they are read and sent.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from gateway.api.asgi import stalled
from gateway.api.errors import ApiError, bad_request
from gateway.api.protocol import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may do."""

    max_connections: int
    max_header_bytes: int
    """Of a request's line and headers together."""
    header_timeout_s: float
    """From a request's first byte, or the connection's start, to the end of its headers."""
    body_timeout_s: float
    """Between two pieces of a body."""


TOO_MANY = ApiError(
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    message="The gateway has too many connections.",
    type="overloaded_error",
    code="too_many_connections",
    should_retry=True,
    retry_after_s=1.0,
)


class GuardedProtocol(Protocol):
    """One connection within limits. Made by `guarded`."""

    limits: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Turn the connection away if there are too many."""
        self._head_bytes = 0
        self._is_in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        self._body_at = 0.0
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self.refuse(TOO_MANY)
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_waiting()
        if self._body_timer is not None:
            self._body_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in bytes; those of a head are counted."""
        if self.transport.is_closing():
            return
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse_head()
        if self._is_in_body:
            self._body_at = self.loop.time()
            if self._body_timer is None:
                self._await_body(self.limits.body_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header that came whole."""
        super().on_header(name, value)
        self._complete_bytes += len(name) + len(value) + 4
        if self._complete_bytes > self.limits.max_header_bytes:
            raise _HeadTooLong

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head = True
        self._complete_bytes = 0

    def on_headers_complete(self) -> None:
        """The head is here."""
        self._stop_waiting()
        self._is_in_head = False
        self._is_in_body = True
        self._head_bytes = 0
        if len(self.url) + self._complete_bytes > self.limits.max_header_bytes:
            raise _HeadTooLong
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here; what comes now is the next one's head."""
        super().on_message_complete()
        self._is_in_head = True
        self._is_in_body = False

    def send_400_response(self, msg: str) -> None:
        """Say what was wrong: too long a head, or no HTTP."""
        if self.transport.is_closing():
            return
        if self._complete_bytes + len(self.url) > self.limits.max_header_bytes:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _await_head(self) -> None:
        delay_s = self.limits.header_timeout_s
        self._head_timer = self.loop.call_later(delay_s, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        self.refuse(
            ApiError(
                status=HTTPStatus.REQUEST_TIMEOUT,
                message="The request's headers did not arrive in time.",
                code="header_timeout",
            )
        )

    def _await_body(self, delay_s: float) -> None:
        self._body_timer = self.loop.call_later(delay_s, self._look_at_body)

    def _look_at_body(self) -> None:
        """Look whether a body has stalled. One timer, however many pieces."""
        self._body_timer = None
        if self.transport.is_closing() or not self._is_in_body:
            return
        if self.flow.read_paused:
            self._body_at = self.loop.time()  # it is we who do not read
        left_s = self._body_at + self.limits.body_timeout_s - self.loop.time()
        if left_s > 0:
            self._await_body(left_s)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self.refuse(stalled())

    def _refuse_head(self) -> None:
        error = bad_request(
            f"The request's headers are longer than {self.limits.max_header_bytes} bytes.",
            code="headers_too_large",
        )
        error.status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.refuse(error)

    _complete_bytes = 0
    """Of this request's headers that came whole."""
    url = b""


class _HeadTooLong(Exception):
    """Ends the parser's work; `send_400_response` says why."""


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """Return a protocol for uvicorn that keeps these limits."""
    return type("LimitedProtocol", (GuardedProtocol,), {"limits": limits})
