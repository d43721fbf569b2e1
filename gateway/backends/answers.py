"""What an engine answers: whole, as a stream, or as an error."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.backends import engine_errors
from gateway.backends.base import (
    BackendError,
    BadAnswer,
    EngineError,
    Header,
    TimedOut,
    Usage,
)
from gateway.backends.connection import Connection
from gateway.backends.connections import Connections
from gateway.backends.headers import to_client
from gateway.backends.relay import StreamRelay
from gateway.core.outcomes import FailureKind

ERROR_BODY_S = 10.0
"""How long the body of an error may take after its headers."""
DRAIN_S = 0.25
"""How long the end of a stream may take after its last event, to keep the connection."""
RETURNED_WITH_ERRORS = (b"retry-after", b"retry-after-ms")


class WholeAnswer:
    """An answer that came in one piece and is complete."""

    ended = True
    is_complete = True

    def __init__(
        self,
        status: int,
        headers: tuple[Header, ...],
        body: bytes,
        usage: Usage,
        finish_reason: str | None,
        made_id: str | None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.whole = body
        self.usage = usage
        self.finish_reason = finish_reason
        self.made_id = made_id

    async def read(self) -> bytes:
        """Return b"": there is no stream."""
        return b""

    async def flow(self, write: Callable[[bytes], bool]) -> None:
        """Do nothing: there is no stream."""

    async def aclose(self) -> None:
        """Do nothing: the connection went back when the body was read."""


class StreamAnswer:
    """An answer that comes piece by piece."""

    whole = None

    def __init__(
        self,
        connection: Connection,
        connections: Connections,
        relay: StreamRelay,
        inter_token_s: float,
        ends_by: float,
        under_way: "set[StreamAnswer]",
    ) -> None:
        """`under_way`: where it stands for as long as it has begun and not ended."""
        if connection.header(b"content-encoding") not in ("", "identity"):
            raise BadAnswer("the engine compressed its answer although it was asked not to")
        self.status = connection.status
        self.headers = to_client(connection.headers)
        self._connection = connection
        self._connections = connections
        self._relay = relay
        self._first = b""
        self._loop = asyncio.get_running_loop()
        self._inter_token_s = inter_token_s
        self._ends_by = ends_by
        self._quiet_since = self._heard_at = self._loop.time()
        self._seen_events = 0
        self._is_waiting = False
        self._left_at = 0.0
        self._expired: FailureKind | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = under_way
        self._is_held = True
        """The connection is ours."""

    @property
    def is_held_up(self) -> bool:
        """It is the client that is waited for, or there is nothing more to come."""
        return not self._is_waiting

    def went_on(self, since: float) -> bool:
        """Return whether the engine said something since this instant, and is not through."""
        return not self._relay.ended and self._heard_at >= since

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

    @property
    def made_id(self) -> str | None:
        """The id under which the engine keeps it, where it has said."""
        return self._relay.made_id

    async def begin(self) -> None:
        """Read up to the first event with data, so that an error there still has a status."""
        relay = self._relay
        pieces = []
        while not (relay.data_events or relay.ended or relay.failure):
            pieces.append(await self._next())
        if relay.failure:
            raise relay.failure
        self._first = b"".join(pieces)
        self._quiet_since = self._heard_at = self._left_at = self._loop.time()
        self._under_way.add(self)
        self._check_time()

    async def read(self) -> bytes:
        """Return the next whole events, b"" at the end, or raise BackendError."""
        if self._first:
            first, self._first = self._first, b""
            return first
        relay = self._relay
        self._wait()
        try:
            while not (relay.ended or relay.failure):
                piece = self._connection.take() or await self._connection.read()
                if passed := self._take_in(piece):
                    return passed
        except BackendError as error:
            raise self._broken(error) from None
        finally:
            self._leave()
        if relay.failure:
            self._stop()
            raise relay.failure
        return b""

    async def flow(self, write: Callable[[bytes], bool]) -> None:
        """Have whole events written the moment they come; see Answer."""
        relay, connection = self._relay, self._connection
        if self._first or relay.ended or relay.failure is not None:
            return
        flowing: asyncio.Future[None] = self._loop.create_future()

        def pass_on() -> None:
            if flowing.done():  # what comes before the task runs is read
                return
            try:
                piece = connection.take()
                passed = self._take_in(piece) if piece else b""
                if relay.ended or relay.failure is not None:
                    self._first = passed  # it goes out with the end
                    flowing.set_result(None)
                elif (
                    (passed and not write(passed))
                    or connection.is_complete
                    or connection.failure is not None
                ):
                    flowing.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised where the answer is relayed
                if not flowing.done():
                    flowing.set_exception(error)

        self._wait()
        connection.heard = pass_on
        try:
            pass_on()
            await flowing
        finally:
            connection.heard = None
            self._leave()

    def _take_in(self, piece: bytes) -> bytes:
        """Return what goes to the client of what the engine sent; b"" is its end."""
        relay = self._relay
        passed = relay.feed(piece) if piece else relay.finish()
        if relay.data_events != self._seen_events:
            self._seen_events = relay.data_events
            self._quiet_since = self._heard_at = self._loop.time()
        return passed

    def _wait(self) -> None:
        # Comments are no progress, and the time that the client took is not the engine's.
        self._quiet_since += self._loop.time() - self._left_at
        self._is_waiting = True

    def _leave(self) -> None:
        self._is_waiting = False
        self._left_at = self._loop.time()

    async def aclose(self) -> None:
        """Give the connection back if the answer was read to its end, else close it."""
        self._stop_timer()
        try:
            if self._relay.ended and not self._connection.is_complete:
                with suppress(TimeoutError, BackendError):
                    async with asyncio.timeout(DRAIN_S):
                        while await self._connection.read():
                            pass
        finally:  # its client may leave even now
            self._stop()

    async def _next(self) -> bytes:
        piece = await self._connection.read()
        return self._relay.feed(piece) if piece else self._relay.finish()

    def _broken(self, error: BackendError) -> BackendError:
        self._stop()
        return TimedOut(self._expired) if self._expired else error

    def _check_time(self) -> None:
        """Close the connection if it has been too quiet. One timer, however many events."""
        now = self._loop.time()
        quiet_until = (self._quiet_since if self._is_waiting else now) + self._inter_token_s
        if now >= self._ends_by:
            self._expired = FailureKind.TIMEOUT_TOTAL
        elif now >= quiet_until:
            self._expired = FailureKind.TIMEOUT_INTER_TOKEN
        if self._expired:
            self._connection.close()
            return
        self._timer = self._loop.call_at(min(quiet_until, self._ends_by), self._check_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop(self) -> None:
        self._stop_timer()
        self._under_way.discard(self)
        if self._is_held:
            self._is_held = False
            self._connections.give_back(self._connection)


async def engine_error(connection: Connection, limit_bytes: int) -> EngineError:
    """Read the rest of an error answer, close its connection, and return the error."""
    body = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(ERROR_BODY_S):
            body = (await connection.read_all(limit_bytes))[:limit_bytes]
    connection.close()
    status = connection.status if connection.status < 600 else 502
    return EngineError(
        engine_errors.kind_of_status(status),
        status,
        engine_errors.error_of_body(status, body, connection.header(b"content-type")),
        tuple(
            header
            for header in to_client(connection.headers)
            if header[0] in RETURNED_WITH_ERRORS or header[0].startswith(b"x-ratelimit-")
        ),
    )
