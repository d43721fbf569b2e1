"""What an engine answers: whole, as a stream, or as an error (aiohttp)."""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import suppress

import aiohttp

from gateway.backends import engine_errors
from gateway.backends.base import (
    BackendError,
    BadAnswer,
    ConnectFailed,
    ConnectionBroken,
    EngineError,
    Header,
    Listener,
    TimedOut,
    Usage,
)
from gateway.backends.dialect import Mender
from gateway.backends.headers import to_client
from gateway.backends.lenient_json import dumps, loads
from gateway.backends.relay import BROKEN_FINISHES, Renaming, StreamRelay, ended_early, read_usage
from gateway.core.outcomes import FailureKind

MAX_ERROR_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
ERROR_BODY_S = 10.0
"""How long the body of an error may take after its headers."""
DRAIN_S = 0.25
"""How long the end of a stream may take after its last event, to keep the connection."""
RETURNED_WITH_ERRORS = (b"retry-after", b"retry-after-ms")


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
        return TimedOut(self._expired) if self._expired else failure_of(error)

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


def failure_of(error: Exception) -> BackendError:
    """Return what the HTTP library's exception means."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ConnectFailed()
    if isinstance(error, aiohttp.ClientResponseError):
        return BadAnswer("the engine answered with something that is not HTTP")
    return ConnectionBroken()


async def engine_error(response: aiohttp.ClientResponse) -> EngineError:
    """Read the rest of an error answer, close its connection, and return the error."""
    body = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(ERROR_BODY_S):
            body = await _read_body(response, MAX_ERROR_BYTES)
    response.close()
    status = response.status if response.status < 600 else 502
    return EngineError(
        engine_errors.kind_of_status(status),
        status,
        engine_errors.error_of_body(status, body, response.headers.get("content-type", "")),
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


async def whole_answer(
    response: aiohttp.ClientResponse,
    listener: Listener,
    renaming: Renaming | None,
    mender: Mender | None,
) -> WholeAnswer:
    """Read an answer to its end; the listener hears of it."""
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
    if not isinstance(said, dict):
        raise BadAnswer("the engine's answer is not a JSON object")
    if said.get("error") is not None:
        status = engine_errors.status_of(said)
        kind = engine_errors.kind_of_status(status)
        raise EngineError(kind, status, engine_errors.error_of(said, status))
    if mender:
        mender.whole(said)
        body = dumps(said)
    choices = said.get("choices")
    if not isinstance(choices, list):
        raise BadAnswer("the engine's answer has no choices")
    first = choices[0] if choices else None
    reason = first.get("finish_reason") if isinstance(first, Mapping) else None
    if reason in BROKEN_FINISHES:
        raise ended_early(reason)
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
