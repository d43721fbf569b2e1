"""HttpClient: one backend over HTTP/1.1, with pooled connections (aiohttp).

Which library, and why, is in docs/decisions/0001-upstream-client.md.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from types import SimpleNamespace
from typing import Protocol

import aiohttp
from yarl import URL

from gateway.backends import engine_errors
from gateway.backends.base import (
    Answer,
    BackendError,
    BadAnswer,
    Call,
    ConnectFailed,
    ConnectionBroken,
    EngineError,
    Header,
    Listener,
    TimedOut,
    Usage,
)
from gateway.backends.headers import to_client
from gateway.backends.lenient_json import loads
from gateway.backends.relay import Renaming, StreamRelay, read_usage
from gateway.core.outcomes import FailureKind

MAX_ERROR_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
ERROR_BODY_S = 10.0
"""How long the body of an error may take after its headers."""
KEEP_ALIVE_S = 4.0
"""vLLM and TGI close idle connections after 5 s; a pooled one must be given up before that."""
STALE_WITHIN_S = 0.5
"""A pooled connection that ends without a byte this soon was dead before it was used."""
DRAIN_S = 0.25
"""How long the end of a stream may take after its last event, to keep the connection."""
BODY_WORTH_STREAMING_BYTES = 256 * 1024

RETURNED_WITH_ERRORS = (b"retry-after", b"retry-after-ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits of one attempt, in seconds."""

    connect_s: float = 5.0
    first_token_s: float = 120.0
    """Streams: from sending the call to its first event."""
    inter_token_s: float = 30.0
    """Streams: between two events. Comments are no progress; a client's slowness is not counted."""
    total_s: float = 600.0


class Dialect(Protocol):
    """What differs between the kinds of engines that speak OpenAI's API."""

    def body(self, call: Call, engine_priority: int) -> bytes:
        """Return the body to send."""


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
    ) -> None:
        self._base = base_url(url)
        self._dialect = dialect
        self._timeouts = timeouts
        self._key_headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._on_unreachable = on_unreachable
        self._urls: dict[str, URL] = {}
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        """For the one retry of a call that met a dead pooled connection."""

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> Answer:
        """Send the call; return once the answer has begun, or raise BackendError."""
        timeouts = self._timeouts
        ends_by = asyncio.get_running_loop().time() + timeouts.total_s
        begin_s = timeouts.first_token_s if call.stream else timeouts.total_s
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(min(begin_s, timeouts.total_s)):
                response = await self._send(call, engine_priority, attempt)
                answer = await self._begin(response, call, listener, ends_by)
        except TimeoutError:
            _close(response)
            late = FailureKind.TIMEOUT_FIRST_TOKEN if call.stream else FailureKind.TIMEOUT_TOTAL
            raise TimedOut(late) from None
        except (aiohttp.ClientError, OSError) as error:
            _close(response)
            failure = _failure_of(error)
            if isinstance(failure, ConnectFailed):
                self._on_unreachable()
            raise failure from error
        except BaseException:
            _close(response)
            raise
        return answer

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("user-agent", "accept"),
            trace_configs=[trace],
            trust_env=False,
        )

    async def _send(self, call: Call, priority: int, attempt: int) -> aiohttp.ClientResponse:
        body = self._dialect.body(call, priority)
        headers = {
            **dict(call.headers),
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": f"{call.upstream_id}-{attempt}",
            **self._key_headers,
        }
        url = self._url(call)
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        note = SimpleNamespace(reused=False)
        if self._pooled is None:
            keeping = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._pooled = self._session(keeping)
        try:
            return await _post(self._pooled, url, body, headers, note)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                raise
            if not note.reused or loop.time() - sent_at > STALE_WITHIN_S:
                raise
        if self._fresh is None:
            self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        return await _post(self._fresh, url, body, headers, note)

    def _url(self, call: Call) -> URL:
        if call.query:
            return URL(f"{self._base}{call.path}?{call.query}", encoded=True)
        url = self._urls.get(call.path)
        if url is None:
            url = self._urls[call.path] = URL(self._base + call.path, encoded=True)
        return url

    async def _begin(
        self, response: aiohttp.ClientResponse, call: Call, listener: Listener, ends_by: float
    ) -> Answer:
        if response.status >= 400:
            raise await _engine_error(response)
        if not 200 <= response.status < 300:
            raise BadAnswer(f"the engine answered with status {response.status}")
        renaming = Renaming(*call.renamed) if call.renamed else None
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/event-stream":
            stream = StreamAnswer(
                response,
                StreamRelay(listener, hide_usage=call.hide_usage, renaming=renaming),
                self._timeouts.inter_token_s,
                ends_by,
            )
            await stream.begin()
            return stream
        if content_type != "application/json":
            raise BadAnswer("the engine answered with something that is not JSON")
        return await _whole_answer(response, listener, renaming)


class WholeAnswer:
    """An answer that came in one piece and is complete."""

    ended = is_complete = True

    def __init__(
        self,
        status: int,
        headers: tuple[Header, ...],
        body: bytes,
        usage: Usage,
        finish_reason: str | None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.whole = body
        self.usage = usage
        self.finish_reason = finish_reason

    async def read(self) -> bytes:
        """Return b"": there is no stream."""
        return b""

    async def aclose(self) -> None:
        """Do nothing: the connection went back when the body was read."""


class StreamAnswer:
    """An answer that comes as server-sent events."""

    whole = None

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        relay: StreamRelay,
        inter_token_s: float,
        ends_by: float,
    ) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise BadAnswer("the engine compressed a stream although it was asked not to")
        self.status = response.status
        self.headers = to_client(response.raw_headers)
        self._response = response
        self._relay = relay
        self._first = b""
        self._loop = asyncio.get_running_loop()
        self._inter_token_s = inter_token_s
        self._ends_by = ends_by
        self._quiet_since = self._loop.time()
        self._seen_events = 0
        self._is_waiting = False
        self._left_at = 0.0
        self._expired: FailureKind | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """The stream is complete: `read` has nothing more."""
        return self._relay.ended and not self._first

    @property
    def is_complete(self) -> bool:
        """The engine ended the answer in order."""
        return self._relay.ended

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return self._relay.usage

    @property
    def finish_reason(self) -> str | None:
        """Why the engine ended it, where it has."""
        return self._relay.finish_reason

    async def begin(self) -> None:
        """Read up to the first event with data, so that an error there still has a status."""
        relay = self._relay
        pieces = []
        while not (relay.data_events or relay.ended or relay.failure):
            pieces.append(await self._next())
        if relay.failure:
            raise relay.failure
        self._first = b"".join(pieces)
        self._quiet_since = self._left_at = self._loop.time()
        self._check_time()

    async def read(self) -> bytes:
        """Return the next whole events, b"" at the end, or raise BackendError."""
        if self._first:
            first, self._first = self._first, b""
            return first
        relay = self._relay
        # Comments are no progress, and the time that the client took is not the engine's.
        self._quiet_since += self._loop.time() - self._left_at
        self._is_waiting = True
        try:
            while not (relay.ended or relay.failure):
                passed = await self._next()
                if relay.data_events != self._seen_events:
                    self._seen_events = relay.data_events
                    self._quiet_since = self._loop.time()
                if passed:
                    return passed
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error
        finally:
            self._is_waiting = False
            self._left_at = self._loop.time()
        if relay.failure:
            self._stop()
            raise relay.failure
        return b""

    async def aclose(self) -> None:
        """Give the connection back if the answer was read to its end, else close it."""
        self._stop_timer()
        if self._relay.ended:
            with suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(DRAIN_S):
                    while await self._response.content.readany():
                        pass
        self._stop()

    async def _next(self) -> bytes:
        piece = await self._response.content.readany()
        return self._relay.feed(piece) if piece else self._relay.finish()

    def _broken(self, error: Exception) -> BackendError:
        self._stop()
        return TimedOut(self._expired) if self._expired else _failure_of(error)

    def _check_time(self) -> None:
        """Close the connection if it has been too quiet. One timer, however many events."""
        now = self._loop.time()
        quiet_until = (self._quiet_since if self._is_waiting else now) + self._inter_token_s
        if now >= self._ends_by:
            self._expired = FailureKind.TIMEOUT_TOTAL
        elif now >= quiet_until:
            self._expired = FailureKind.TIMEOUT_INTER_TOKEN
        if self._expired:
            self._response.close()
            return
        self._timer = self._loop.call_at(min(quiet_until, self._ends_by), self._check_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop(self) -> None:
        self._stop_timer()
        # A connection whose answer was read to its end has gone back to the pool already.
        if not self._response.closed:
            self._response.close()


def base_url(url: str) -> str:
    """Return a backend's URL without what the paths of the API begin with."""
    return url.rstrip("/").removesuffix("/v1")


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True


async def _post(
    session: aiohttp.ClientSession,
    url: URL,
    body: bytes,
    headers: Mapping[str, str],
    note: SimpleNamespace,
) -> aiohttp.ClientResponse:
    # A large body goes out in pieces, so that the loop is not held by one write.
    data = body if len(body) < BODY_WORTH_STREAMING_BYTES else BytesIO(body)
    return await session.post(
        url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=note
    )


def _close(response: aiohttp.ClientResponse | None) -> None:
    if response is not None:
        response.close()


def _failure_of(error: Exception) -> BackendError:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ConnectFailed()
    if isinstance(error, aiohttp.ClientResponseError):
        return BadAnswer("the engine answered with something that is not HTTP")
    return ConnectionBroken()


async def _engine_error(response: aiohttp.ClientResponse) -> EngineError:
    body = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(ERROR_BODY_S):
            body = await _read_body(response, MAX_ERROR_BYTES)
    response.close()
    status = response.status if response.status < 600 else 502
    return EngineError(
        engine_errors.kind_of_status(status),
        status,
        engine_errors.error_of_body(status, body),
        tuple(
            header
            for header in to_client(response.raw_headers)
            if header[0] in RETURNED_WITH_ERRORS or header[0].startswith(b"x-ratelimit-")
        ),
    )


async def _read_body(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Return the body, or what of it fits the limit."""
    pieces: list[bytes] = []
    size = 0
    while size <= limit_bytes and (piece := await response.content.readany()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)[: limit_bytes + 1]


async def _whole_answer(
    response: aiohttp.ClientResponse, listener: Listener, renaming: Renaming | None
) -> WholeAnswer:
    body = await _read_body(response, MAX_BODY_BYTES)
    if len(body) > MAX_BODY_BYTES:
        raise BadAnswer(f"the engine's answer is longer than {MAX_BODY_BYTES} bytes")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        body = _decoded(body, encoding)
    try:
        said = loads(body)
    except ValueError:
        raise BadAnswer("the engine's answer is not JSON") from None
    if not isinstance(said, Mapping):
        raise BadAnswer("the engine's answer is not a JSON object")
    if said.get("error") is not None:
        status = engine_errors.status_of(said)
        kind = engine_errors.kind_of_status(status)
        raise EngineError(kind, status, engine_errors.error_of(said, status))
    choices = said.get("choices")
    if not isinstance(choices, list):
        raise BadAnswer("the engine's answer has no choices")
    first = choices[0] if choices else None
    reason = first.get("finish_reason") if isinstance(first, Mapping) else None
    usage = said.get("usage")
    counts = read_usage(usage) if isinstance(usage, Mapping) else Usage(0)
    if renaming:
        body = renaming.apply(body)
    listener.finished(counts)
    return WholeAnswer(
        response.status,
        to_client(response.raw_headers),
        body,
        counts,
        reason if isinstance(reason, str) else None,
    )


def _decoded(body: bytes, encoding: str) -> bytes:
    """Undo a compression that nobody asked for; a client that did not ask gets none."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadAnswer("the engine's answer is compressed in a way that nobody asked for")
    # 32: look whether a zlib or a gzip header leads.
    inflater = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, MAX_BODY_BYTES)
    except zlib.error:
        raise BadAnswer("the engine's compressed answer is broken") from None
    if not inflater.eof:
        raise BadAnswer("the engine's compressed answer is too long or cut short")
    return plain
