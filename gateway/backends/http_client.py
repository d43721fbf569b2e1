"""HttpClient: one backend over HTTP/1.1, with pooled connections of our own.

Why our own is in docs/decisions/0003-own-upstream-client.md.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.backends.answers import StreamAnswer, engine_error
from gateway.backends.base import (
    Answer,
    BackendError,
    BadAnswer,
    Bounds,
    Call,
    ConnectFailed,
    ConnectionBroken,
    EngineError,
    Listener,
    Shape,
    TimedOut,
)
from gateway.backends.connection import Connection
from gateway.backends.connections import Connections, Origin
from gateway.backends.deadlines import Deadlines
from gateway.backends.dialect import Dialect, Mender
from gateway.backends.relay import Renaming
from gateway.backends.shapes import RELAYS, RawRelay
from gateway.backends.whole import whole_answer
from gateway.core.outcomes import FailureKind

STALE_WITHIN_S = 0.5
"""A pooled connection that ends without a byte this soon was dead before it was used."""
BODY_WORTH_PIECES_BYTES = 256 * 1024
"""A body larger than this goes out as fast as the engine takes it."""
_RANKED = (Shape.CHOICES, Shape.RESPONSE)
"""Calls that engines rank by a priority in the body, and whose bodies dialects adapt."""
_TARGET = re.compile(r"/[\x21-\x7e\x80-\xff]*")
_NO_ROUTE = ("Not Found", "Method Not Allowed", "File Not Found")
"""What web frameworks and llama.cpp say of a path that they do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one attempt, in seconds."""

    connect_s: float = 5.0
    first_token_s: float = 120.0
    """Streams: from sending the call to its first event."""
    inter_token_s: float = 30.0
    """Streams: between two events. Comments are no progress; a client's slowness is not counted."""
    total_s: float = 600.0


class HttpClient:
    """Talks to one backend, on one event loop."""

    def __init__(
        self,
        url: str,
        dialect: Dialect,
        timeouts: Timeouts,
        *,
        api_key: str | None = None,
        on_unreachable: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._origin = Origin.of(base_url(url))
        self._dialect = dialect
        self._timeouts = timeouts
        self._connections = Connections(self._origin, tls)
        credentials = f"Bearer {api_key}" if api_key else self._origin.credentials
        self._same_headers = f"host: {self._origin.authority}\r\naccept-encoding: identity\r\n"
        if credentials:
            self._same_headers += f"authorization: {credentials}\r\n"
        self._on_unreachable = on_unreachable
        self._bounds = bounds or Bounds()
        self._streams: set[StreamAnswer] = set()
        """Those that have begun and not ended."""
        self._deadlines = Deadlines()
        self._unbegun = 0
        """Streams that are waited for."""
        self.busy_until = 0.0
        """When the last of its calls must be over, on the loop's clock."""

    @property
    def longest_call_s(self) -> float:
        """How long a call may be under way whose model says nothing else."""
        return self._timeouts.total_s

    def gives_sign(self, since: float) -> bool:
        """Return whether a stream went on since this instant, or all that keeps streams from going
        on is their clients.
        """
        streams = self._streams
        return any(stream.went_on(since) for stream in streams) or (
            bool(streams) and not self._unbegun and all(stream.is_held_up for stream in streams)
        )

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> Answer:
        """Send the call; return once the answer has begun, or raise BackendError."""
        timeouts = replace(self._timeouts, **call.timeouts) if call.timeouts else self._timeouts
        task = asyncio.current_task()
        assert task is not None
        now = task.get_loop().time()
        ends_by = now + timeouts.total_s
        self.busy_until = max(self.busy_until, ends_by)
        begin_s = min(timeouts.first_token_s, timeouts.total_s) if call.stream else timeouts.total_s
        self._unbegun += call.stream
        self._deadlines.begin(task, now + begin_s)
        try:
            try:
                answer = await self._ask(call, listener, engine_priority, attempt, ends_by)
            except EngineError as refusal:
                if not self._dialect.adapts_to(refusal):
                    raise
                answer = await self._ask(call, listener, engine_priority, attempt, ends_by)
        except asyncio.CancelledError:
            if not self._deadlines.end(task) or task.uncancel():
                raise
            kind = FailureKind.TIMEOUT_FIRST_TOKEN if call.stream else FailureKind.TIMEOUT_TOTAL
            raise TimedOut(kind) from None
        except BackendError as error:
            if isinstance(error, ConnectFailed) and not error.is_late:
                self._on_unreachable()
            error.retryable = error.retryable and not _has_begun(call)
            raise
        finally:
            self._deadlines.end(task)
            self._unbegun -= call.stream
        return answer

    async def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    async def _ask(
        self, call: Call, listener: Listener, priority: int, attempt: int, ends_by: float
    ) -> Answer:
        body, mender = call.body, None
        if call.shape in _RANKED:
            body, mender = self._dialect.prepare(call, priority)
        connection = await self._send(call, body, attempt)
        try:
            return await self._begin(connection, call, mender, listener, ends_by)
        except BaseException:
            connection.close()
            raise

    async def _send(self, call: Call, body: bytes, attempt: int) -> Connection:
        """Send the call; return when the head of an answer is here."""
        head = self._head_of(call, body, attempt)
        connection = self._connections.take_idle()
        if connection is not None:
            try:
                return await _sent(connection, head, call, body)
            except ConnectionBroken:
                if not _was_stale(connection) or _has_begun(call):
                    raise
        connect_s = call.timeouts.get("connect_s", self._timeouts.connect_s)
        return await _sent(await self._connections.connect(connect_s), head, call, body)

    def _head_of(self, call: Call, body: bytes, attempt: int) -> bytes:
        target = self._origin.path + call.path
        if call.query:
            target += f"?{call.query}"
        assert _TARGET.fullmatch(target), "what no client can have sent"
        head = (
            f"{call.method} {target} HTTP/1.1\r\n{self._same_headers}"
            f"x-request-id: {call.upstream_id}-{attempt}\r\n"
        )
        for name, value in call.headers:
            head += f"{name}: {value}\r\n"
        if call.upload is not None:
            length = call.upload.length
            framing = (
                "transfer-encoding: chunked" if length is None else f"content-length: {length}"
            )
            head += f"content-type: {call.content_type}\r\n{framing}\r\n"
        elif body:
            head += f"content-type: {call.content_type}\r\ncontent-length: {len(body)}\r\n"
        elif call.method != "GET":
            head += "content-length: 0\r\n"
        return f"{head}\r\n".encode("latin-1")

    async def _begin(
        self,
        connection: Connection,
        call: Call,
        mender: Mender | None,
        listener: Listener,
        ends_by: float,
    ) -> Answer:
        explain = self._dialect.explain
        if connection.status >= 400:
            error = await engine_error(connection, self._bounds.error_bytes)
            raise explain(_without_route(call, error))
        if not 200 <= connection.status < 300:
            raise BadAnswer(f"the engine answered with status {connection.status}")
        renaming = Renaming(*call.renamed) if call.renamed else None
        content_type = connection.header(b"content-type").partition(";")[0].strip().lower()
        if content_type == "application/json":
            try:
                limit_bytes = self._bounds.answer_bytes
                answer = await whole_answer(
                    connection, call, listener, renaming, mender, limit_bytes
                )
            except EngineError as error:
                raise explain(error) from None
            self._connections.give_back(connection)
            return answer
        if content_type == "text/event-stream":
            relay_of = RELAYS[call.shape]
        elif call.shape is Shape.ANY:
            relay_of = RawRelay
        else:
            raise BadAnswer("the engine answered with something that is not JSON")
        relay = relay_of(
            listener,
            hide_usage=call.hide_usage,
            renaming=renaming,
            mender=mender,
            explain=explain,
            max_event_bytes=self._bounds.event_bytes,
        )
        inter_token_s = call.timeouts.get("inter_token_s", self._timeouts.inter_token_s)
        stream = StreamAnswer(
            connection, self._connections, relay, inter_token_s, ends_by, self._streams
        )
        await stream.begin()
        return stream


async def _sent(connection: Connection, head: bytes, call: Call, body: bytes) -> Connection:
    """Send a call, what is long as fast as the engine takes it; return at the answer's head."""
    try:
        if call.upload is not None:
            connection.send(head)
            connection.send_more(call.upload.pieces(), is_chunked=call.upload.length is None)
        elif len(body) > BODY_WORTH_PIECES_BYTES:
            connection.send(head)
            connection.send_more(_Pieces(body), is_chunked=False)
        else:
            connection.send(head + body)
        await connection.head()
    except BaseException:
        connection.close()
        raise
    return connection


class _Pieces:
    """A long body, piece by piece."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        begin, self._at = self._at, self._at + BODY_WORTH_PIECES_BYTES
        if begin >= len(self._body):
            raise StopAsyncIteration
        return self._body[begin : self._at]


def _was_stale(connection: Connection) -> bool:
    """Return whether the engine had closed a pooled connection before it was used again."""
    return (
        not connection.has_answered
        and asyncio.get_running_loop().time() - connection.sent_at <= STALE_WITHIN_S
    )


def _has_begun(call: Call) -> bool:
    """Return whether some of an upload has been sent: it cannot be sent again."""
    return call.upload is not None and call.upload.is_begun


def _without_route(call: Call, error: EngineError) -> EngineError:
    """Return what it means that the engine has no such route: another one may have."""
    if error.status not in (404, 405, 501) or error.error.get("message") not in _NO_ROUTE:
        return error
    return EngineError(
        FailureKind.UNSUPPORTED,
        404,
        {
            "message": f"The model's backend does not offer {call.path}.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_supported",
        },
    )


def base_url(url: str) -> str:
    """Return a backend's URL without what the paths of the API begin with."""
    return url.rstrip("/").removesuffix("/v1")
