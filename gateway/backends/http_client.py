"""HttpClient: one backend over HTTP/1.1, with pooled connections (aiohttp).

Which library, and why, is in docs/decisions/0001-upstream-client.md.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from types import SimpleNamespace
from typing import NamedTuple

import aiohttp
from yarl import URL

from gateway.backends.answers import StreamAnswer, engine_error, failure_of
from gateway.backends.base import (
    Answer,
    BackendError,
    BadAnswer,
    Bounds,
    Call,
    ConnectFailed,
    EngineError,
    Listener,
    Shape,
    TimedOut,
)
from gateway.backends.dialect import Dialect, Mender
from gateway.backends.relay import Renaming
from gateway.backends.shapes import RELAYS, RawRelay
from gateway.backends.whole import whole_answer
from gateway.core.outcomes import FailureKind

KEEP_ALIVE_S = 4.0
"""vLLM and TGI close idle connections after 5 s; a pooled one must be given up before that."""
STALE_WITHIN_S = 0.5
"""A pooled connection that ends without a byte this soon was dead before it was used."""
BODY_WORTH_STREAMING_BYTES = 256 * 1024
_RANKED = (Shape.CHOICES, Shape.RESPONSE)
"""Calls that engines rank by a priority in the body, and whose bodies dialects adapt."""
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
        self._base = base_url(url)
        self._dialect = dialect
        self._timeouts = timeouts
        self._headers = {"accept-encoding": "identity"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._on_unreachable = on_unreachable
        self._bounds = bounds or Bounds()
        self._tls: ssl.SSLContext | bool = tls or True
        self._urls: dict[str, URL] = {}
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        """For the one retry of a call that met a dead pooled connection."""
        self._streams: set[StreamAnswer] = set()
        """Those that have begun and not ended."""
        self.busy_until = 0.0
        """When the last of its calls must be over, on the loop's clock."""

    @property
    def longest_call_s(self) -> float:
        """How long a call may be under way whose model says nothing else."""
        return self._timeouts.total_s

    def gives_sign(self, since: float) -> bool:
        """Return whether a stream went on since this instant, or is held up by its client."""
        return any(stream.gives_sign(since) for stream in self._streams)

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> Answer:
        """Send the call; return once the answer has begun, or raise BackendError."""
        try:
            return await self._open(call, listener, engine_priority, attempt)
        except BackendError as error:
            if call.upload is not None and call.upload.is_begun:
                error.retryable = False
            raise

    async def _open(
        self, call: Call, listener: Listener, engine_priority: int, attempt: int
    ) -> Answer:
        timeouts = replace(self._timeouts, **call.timeouts) if call.timeouts else self._timeouts
        ends_by = asyncio.get_running_loop().time() + timeouts.total_s
        self.busy_until = max(self.busy_until, ends_by)
        begin_s = timeouts.first_token_s if call.stream else timeouts.total_s
        try:
            async with asyncio.timeout(min(begin_s, timeouts.total_s)):
                try:
                    answer = await self._ask(call, listener, engine_priority, attempt, ends_by)
                except EngineError as error:
                    if not self._dialect.adapts_to(error):
                        raise
                    answer = await self._ask(call, listener, engine_priority, attempt, ends_by)
        except TimeoutError:
            late = FailureKind.TIMEOUT_FIRST_TOKEN if call.stream else FailureKind.TIMEOUT_TOTAL
            raise TimedOut(late) from None
        except (aiohttp.ClientError, OSError) as error:
            failure = failure_of(error)
            if isinstance(failure, ConnectFailed):
                self._on_unreachable()
            raise failure from error
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
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("user-agent", "accept"),
            trace_configs=[trace],
            trust_env=False,
        )

    async def _ask(
        self, call: Call, listener: Listener, priority: int, attempt: int, ends_by: float
    ) -> Answer:
        body, mender = call.body, None
        if call.shape in _RANKED:
            body, mender = self._dialect.prepare(call, priority)
        response = await self._send(call, body, attempt)
        try:
            return await self._begin(response, call, mender, listener, ends_by)
        except BaseException:
            response.close()
            raise

    async def _send(self, call: Call, body: bytes, attempt: int) -> aiohttp.ClientResponse:
        headers = {
            **self._headers,
            **dict(call.headers),
            "x-request-id": f"{call.upstream_id}-{attempt}",
        }
        if body or call.upload is not None:
            headers["content-type"] = call.content_type
        connect_s = call.timeouts.get("connect_s", self._timeouts.connect_s)
        request = _Request(call, self._url(call), headers, body, connect_s)
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        note = SimpleNamespace(reused=False)
        if self._pooled is None:
            keeping = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=self._tls)
            self._pooled = self._session(keeping)
        try:
            return await request.send(self._pooled, note)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                raise
            if not note.reused or loop.time() - sent_at > STALE_WITHIN_S:
                raise
            if call.upload is not None and call.upload.is_begun:
                raise
        if self._fresh is None:
            self._fresh = self._session(
                aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls)
            )
        return await request.send(self._fresh, note)

    def _url(self, call: Call) -> URL:
        if call.query:
            return URL(f"{self._base}{call.path}?{call.query}", encoded=True)
        url = self._urls.get(call.path)
        if url is None:
            url = self._urls[call.path] = URL(self._base + call.path, encoded=True)
        return url

    async def _begin(
        self,
        response: aiohttp.ClientResponse,
        call: Call,
        mender: Mender | None,
        listener: Listener,
        ends_by: float,
    ) -> Answer:
        explain = self._dialect.explain
        if response.status >= 400:
            raise explain(
                _without_route(call, await engine_error(response, self._bounds.error_bytes))
            )
        if not 200 <= response.status < 300:
            raise BadAnswer(f"the engine answered with status {response.status}")
        renaming = Renaming(*call.renamed) if call.renamed else None
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "application/json":
            try:
                limit_bytes = self._bounds.answer_bytes
                return await whole_answer(response, call, listener, renaming, mender, limit_bytes)
            except EngineError as error:
                raise explain(error) from None
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
        stream = StreamAnswer(response, relay, inter_token_s, ends_by, self._streams)
        await stream.begin()
        return stream


class _Request(NamedTuple):
    """One attempt at one call."""

    call: Call
    url: URL
    headers: Mapping[str, str]
    body: bytes
    connect_s: float

    async def send(
        self, session: aiohttp.ClientSession, note: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        """Send it; return when the head of an answer is here."""
        upload, headers = self.call.upload, dict(self.headers)
        data: bytes | BytesIO | AsyncIterator[bytes] | None = self.body or None
        if upload is not None:
            data = upload.pieces()
            if upload.length is not None:
                headers["content-length"] = str(upload.length)
        elif len(self.body) >= BODY_WORTH_STREAMING_BYTES:
            # A large body goes out in pieces, so that the loop is not held by one write.
            data = BytesIO(self.body)
        return await session.request(
            self.call.method,
            self.url,
            data=data,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_s),
            trace_request_ctx=note,
        )


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


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True
