"""Driver: the only caller of the live scheduler. It feeds facts in and carries commands out."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Protocol

from gateway.backends.base import Answer, BackendClient, BackendError, Call, TimedOut, Usage
from gateway.core.commands import Command, Evict, Recall, Reject, Settle, Start, Stop, WorkflowEnded
from gateway.core.events import (
    Abandoned,
    Arrived,
    Event,
    Failed,
    Finished,
    FirstToken,
    Progressed,
    TimePassed,
)
from gateway.core.outcomes import FailureKind, RejectReason
from gateway.core.types import BackendId, InferenceRequest, RequestId
from gateway.runtime.clock import Clock
from gateway.runtime.run import Refused, Run, Served

Observer = Callable[[float, Event, Sequence[Command]], None]
"""Is shown every event with the commands that followed. It must not raise, and not keep long."""

SOON_S = 1e-6
"""Timers may fire this early."""

log = logging.getLogger(__name__)


class SchedulerLike(Protocol):
    """What the driver needs of `gateway.core.scheduler.Scheduler`."""

    @property
    def wake_at(self) -> float | None:
        """When it wants to be told that time has passed."""

    def handle(self, event: Event, now: float) -> Sequence[Command]:
        """Take in one fact; return what to do about it."""


class Driver:
    """Owns the scheduler. Everything here runs on one event loop and `feed` never awaits."""

    def __init__(
        self,
        scheduler: SchedulerLike,
        clients: Mapping[BackendId, BackendClient],
        clock: Clock,
        observers: Sequence[Observer] = (),
        traceparent: Callable[[RequestId], str | None] | None = None,
    ) -> None:
        """`traceparent` says below which span the attempt under way stands; None: the client's."""
        self._traceparent = traceparent
        self._scheduler = scheduler
        self._clients = clients
        self._clock = clock
        self._observers = observers
        self._runs: dict[RequestId, Run] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def in_flight(self) -> int:
        """How many requests are held, queued or running."""
        return len(self._runs)

    def feed(self, event: Event) -> None:
        """Tell the scheduler what has happened and carry out what it wants, at once."""
        self._feed_at(self._clock.now(), event)

    def enter(self, run: Run, request: InferenceRequest) -> None:
        """A request arrives that somebody else carries out; it must `leave`, once it is settled."""
        self.add(run)
        self.feed(Arrived(request))

    def add(self, run: Run) -> None:
        """A request is about to arrive."""
        self._runs[run.id] = run

    def leave(self, request_id: RequestId) -> None:
        """Forget a request."""
        del self._runs[request_id]

    def find(self, request_id: RequestId) -> Run | None:
        """Return a request that is here."""
        return self._runs.get(request_id)

    def give_up(self, why: Exception) -> None:
        """There is no scheduler any more: who waits is told why; what runs may end."""
        for run in self._runs.values():
            run.refuse(why)
            run.settle()

    def run(self, request: InferenceRequest, call: Call) -> AbstractAsyncContextManager[Served]:
        """Return the way of a request: see `carry`."""
        return self.carry(request.id, partial(self.feed, Arrived(request)), call)

    def carry(
        self, request_id: RequestId, arrive: Callable[[], None], call: Call
    ) -> AbstractAsyncContextManager[Served]:
        """Have a request arrive, wait for its turn and hand out the answer when it has begun.

        Raises Refused or BackendError, from here or, once the answer has begun, through `read`.
        However it is left, the connection to the engine is given back or closed first and the
        scheduler hears how it ended; a caller that leaves early has abandoned the request.
        """
        return _Run(self, request_id, arrive, call)

    async def attempt(self, run: "_Run", call: Call, start: Start) -> Answer:
        """Send the call; return when its answer has begun, or raise BackendError."""
        if self._traceparent is not None and (header := self._traceparent(run.id)) is not None:
            call = call.below(header)
        return await self._clients[start.backend_id].open(
            call, run, engine_priority=start.engine_priority, attempt=start.attempt
        )

    def _feed_at(self, now: float, event: Event) -> None:
        """No `await` from here on: one event is handled whole before the next."""
        commands = self._scheduler.handle(event, now)
        for observe in self._observers:
            observe(now, event, commands)
        for command in commands:
            self.carry_out(command)
        self._arm()

    def carry_out(self, command: Command) -> None:
        """Do what the scheduler wants. Each command is carried out once, in order."""
        match command:
            case Start(request_id=request_id):
                self._runs[request_id].start(command)
            case Reject(request_id, reason, retry_after_s) | Evict(
                request_id, reason, retry_after_s
            ):
                self._runs[request_id].refuse(Refused(reason, retry_after_s))
            case Stop(request_id=request_id, reason=reason):
                if reason is not None:
                    self._runs[request_id].stop(reason)
            case Recall(request_id=request_id):
                self._runs[request_id].recall()
            case Settle(request_id=request_id):
                self._runs[request_id].settle()
            case WorkflowEnded():
                pass

    def _arm(self) -> None:
        """Have the scheduler woken when it wants. A timer that comes too early is harmless."""
        wake_at = self._scheduler.wake_at
        if wake_at is None or (self._timer is not None and self._timer_at <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_at = wake_at
        self._timer = loop.call_later(max(wake_at - self._clock.now(), 0.0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now, wake_at = self._clock.now(), self._scheduler.wake_at
        if wake_at is not None and wake_at - now <= SOON_S:
            self._feed_at(max(now, wake_at), TimePassed())
        else:
            self._arm()


class _Run:
    """One request on its way: its turn, and the facts that its backend tells of it.

    `async with` it: see `Driver.carry`.
    """

    __slots__ = (
        "_answer",
        "_arrive",
        "_call",
        "_driver",
        "_failure",
        "_has_ended",
        "_is_recalled",
        "_is_settled",
        "_is_under_way",
        "_output_tokens",
        "_recall",
        "_stopped_for",
        "_task",
        "_turn",
        "id",
    )

    def __init__(
        self, driver: Driver, request_id: RequestId, arrive: Callable[[], None], call: Call
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.id = request_id
        self._driver = driver
        self._arrive = arrive
        self._call = call
        self._task = task
        self._turn: asyncio.Future[Start] = task.get_loop().create_future()
        self._answer: Answer | None = None
        self._failure: BackendError | None = None
        """Why its latest attempt failed."""
        self._is_settled = False
        self._stopped_for: RejectReason | None = None
        self._output_tokens = 0
        self._is_under_way = False
        """An attempt is, whose answer has not begun."""
        self._recall: asyncio.Handle | None = None
        self._is_recalled = False
        self._has_ended = False

    async def __aenter__(self) -> Served:
        self._driver.add(self)
        try:
            self._arrive()
            return await self._open()
        except BaseException as error:
            self._over(error)
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._answer is not None
        try:
            await self._answer.aclose()
        except BaseException as error:
            self._over(error)
            raise
        self._over(exc)

    async def _open(self) -> Served:
        while True:
            start = await self._turn
            try:
                self._answer = await self._attempt(start)
            except BackendError as error:
                log.info(
                    "attempt %d on %s: %s (%s)",
                    start.attempt,
                    start.backend_id,
                    error.kind,
                    str(error),  # a record that is kept must not keep the whole call
                    extra={"request_id": self.id},
                )
                self._turn = asyncio.get_running_loop().create_future()
                self._output_tokens = 0
                self._failure = error.with_traceback(None)  # kept: it must not keep who raised it
                self._driver.feed(Failed(self.id, error.kind, retryable=error.retryable))
                if self._is_settled:  # perhaps long ago: nobody will say so again
                    self.settle()
            else:
                return Served(self._answer, start)

    async def _attempt(self, start: Start) -> Answer:
        self._is_under_way = True
        try:
            return await self._driver.attempt(self, self._call, start)
        except asyncio.CancelledError:
            if not self._is_recalled or self._task.uncancel():
                raise
            recalled = TimedOut(FailureKind.TIMEOUT_FIRST_TOKEN)
            recalled.retryable = True  # the connection is closed, and no client has seen a byte
            raise recalled from None
        finally:
            self._is_recalled = self._is_under_way = False
            if self._recall is not None:
                self._recall.cancel()
                self._recall = None

    def _over(self, error: BaseException | None) -> None:
        """Close the books; raise what its client is to be told in place of this error."""
        try:
            if isinstance(error, BackendError):
                tokens = self._output_tokens
                self._end(Failed(self.id, error.kind, retryable=False, output_tokens=tokens))
            elif isinstance(error, asyncio.CancelledError) and self._stopped_for is not None:
                self._task.uncancel()
                raise Refused(self._stopped_for) from None
        finally:
            # Pessimistic until proven: whatever went wrong, the books must balance.
            if not self._has_ended:
                self._end(Abandoned(self.id, self._output_tokens))
            self._driver.leave(self.id)
            self._answer = None  # which tells us of its tokens: they would hold each other

    def first_token(self) -> None:
        self._output_tokens = 1
        self._driver.feed(FirstToken(self.id))

    def progressed(self, output_tokens: int) -> None:
        self._output_tokens = output_tokens
        self._driver.feed(Progressed(self.id, output_tokens))

    def finished(self, usage: Usage) -> None:
        self._output_tokens = usage.output_tokens
        self._end(Finished(self.id, *usage))

    def _end(self, event: Event) -> None:
        """Tell how it ended, once, unless the books are closed."""
        if not self._is_settled and not self._has_ended:
            self._has_ended = True
            self._driver.feed(event)

    def start(self, start: Start) -> None:
        if not self._turn.done():  # its client left this very tick; Abandoned is on its way
            self._turn.set_result(start)

    def refuse(self, why: Exception) -> None:
        if not self._turn.done():
            self._turn.set_exception(why)
            self._turn.exception()  # it is no loss if its client has just left

    def settle(self) -> None:
        self._is_settled = True
        if self._failure is not None:
            self.refuse(self._failure)  # unless there is another turn, or a reason why not

    def recall(self) -> None:
        # What has been read of an upload cannot be sent to another backend.
        if self._is_under_way and self._recall is None and self._call.upload is None:
            self._recall = asyncio.get_running_loop().call_soon(self._call_back)

    def _call_back(self) -> None:
        self._is_recalled = True
        self._task.cancel()

    def stop(self, reason: RejectReason) -> None:
        self._stopped_for = reason
        self._task.cancel()
