"""Driver: the only caller of the live scheduler. It feeds facts in and carries commands out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol

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


class Refused(Exception):
    """The scheduler turned a request away, before or after it was queued or started."""

    def __init__(self, reason: RejectReason, retry_after_s: float | None = None) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Served(NamedTuple):
    """An answer that has begun, and why it comes from where it comes."""

    answer: Answer
    start: Start


class Run(Protocol):
    """A request that has arrived, and what becomes of it. Nothing here may raise."""

    @property
    def id(self) -> RequestId:
        """The request's."""

    def start(self, start: Start) -> None:
        """Send it."""

    def refuse(self, why: Exception) -> None:
        """Tell its client why not."""

    def stop(self, reason: RejectReason) -> None:
        """End it for a reason that its client is to be told."""

    def recall(self) -> None:
        """End an attempt whose answer has not begun; one that has goes on."""

    def settle(self) -> None:
        """Its books are closed."""


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
        self._runs[run.id] = run
        self.feed(Arrived(request))

    def leave(self, request_id: RequestId) -> None:
        """Forget a request that has entered."""
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

    @asynccontextmanager
    async def carry(
        self, request_id: RequestId, arrive: Callable[[], None], call: Call
    ) -> AsyncIterator[Served]:
        """Have a request arrive, wait for its turn and hand out the answer when it has begun.

        Raises Refused or BackendError, from here or, once the answer has begun, through `read`.
        However it is left, the connection to the engine is given back or closed first and the
        scheduler hears how it ended; a caller that leaves early has abandoned the request.
        """
        run = self._runs[request_id] = _Run(request_id, self.feed)
        try:
            arrive()
            served = await self._open(run, call)
            async with aclosing(served.answer):
                yield served
        except BackendError as error:
            run.end(Failed(run.id, error.kind, retryable=False, output_tokens=run.output_tokens))
            raise
        except asyncio.CancelledError:
            if run.stopped_for is None:
                raise
            run.task.uncancel()
            raise Refused(run.stopped_for) from None
        finally:
            # Pessimistic until proven: whatever went wrong, the books must balance.
            run.end(Abandoned(run.id, run.output_tokens))
            del self._runs[run.id]

    async def _open(self, run: "_Run", call: Call) -> Served:
        while True:
            start = await run.turn
            try:
                answer = await self._attempt(run, call, start)
            except BackendError as error:
                log.info(
                    "attempt %d on %s: %s (%s)",
                    start.attempt,
                    start.backend_id,
                    error.kind,
                    str(error),  # a record that is kept must not keep the whole call
                    extra={"request_id": run.id},
                )
                run.turn = asyncio.get_running_loop().create_future()
                run.output_tokens = 0
                run.failure = error
                self.feed(Failed(run.id, error.kind, retryable=error.retryable))
                if run.is_settled:  # perhaps long ago: nobody will say so again
                    run.settle()
            else:
                return Served(answer, start)

    async def _attempt(self, run: "_Run", call: Call, start: Start) -> Answer:
        """Send the call; return when its answer has begun, or raise BackendError."""
        if self._traceparent is not None and (header := self._traceparent(run.id)) is not None:
            call = call.below(header)
        try:
            async with asyncio.timeout(None) as limit:
                # What has been read of an upload cannot be sent to another backend.
                run.limit = limit if call.upload is None else None
                return await self._clients[start.backend_id].open(
                    call, run, engine_priority=start.engine_priority, attempt=start.attempt
                )
        except TimeoutError:
            recalled = TimedOut(FailureKind.TIMEOUT_FIRST_TOKEN)
            recalled.retryable = True  # the connection is closed, and no client has seen a byte
            raise recalled from None
        finally:
            run.limit = None

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
    """One request on its way: its turn, and the facts that its backend tells of it."""

    def __init__(self, request_id: RequestId, feed: Callable[[Event], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.id = request_id
        self.task = task
        self.turn: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self.failure: BackendError | None = None
        """Why its latest attempt failed."""
        self.is_settled = False
        self.stopped_for: RejectReason | None = None
        self.output_tokens = 0
        self.limit: asyncio.Timeout | None = None
        """Of an attempt whose answer has not begun."""
        self._feed = feed
        self._has_ended = False

    def first_token(self) -> None:
        self.output_tokens = 1
        self._feed(FirstToken(self.id))

    def progressed(self, output_tokens: int) -> None:
        self.output_tokens = output_tokens
        self._feed(Progressed(self.id, output_tokens))

    def finished(self, usage: Usage) -> None:
        self.output_tokens = usage.output_tokens
        self.end(Finished(self.id, *usage))

    def end(self, event: Event) -> None:
        """Tell how it ended, once, unless the books are closed."""
        if not self.is_settled and not self._has_ended:
            self._has_ended = True
            self._feed(event)

    def start(self, start: Start) -> None:
        if not self.turn.done():  # its client left this very tick; Abandoned is on its way
            self.turn.set_result(start)

    def refuse(self, why: Exception) -> None:
        if not self.turn.done():
            self.turn.set_exception(why)
            self.turn.exception()  # it is no loss if its client has just left

    def settle(self) -> None:
        self.is_settled = True
        if self.failure is not None:
            self.refuse(self.failure)  # unless there is another turn, or a reason why not

    def recall(self) -> None:
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())

    def stop(self, reason: RejectReason) -> None:
        self.stopped_for = reason
        self.task.cancel()
