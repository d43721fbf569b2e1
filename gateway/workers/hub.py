"""Hub: the scheduler process's end of all workers. It enters their calls and passes turns on."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.api import errors
from gateway.api.desk import Arrival, Entry, Register
from gateway.api.errors import ApiError
from gateway.api.first_tries import Try
from gateway.api.kept import Keeper, KeptIds
from gateway.api.tenants import TenantResolver
from gateway.backends.base import Usage
from gateway.core.commands import Command, Start
from gateway.core.events import (
    Abandoned,
    BackendChanged,
    BackendRemoved,
    Event,
    Failed,
    FirstToken,
    Heard,
    Progressed,
    Reconfigured,
)
from gateway.core.outcomes import RejectReason
from gateway.core.types import BackendId, InferenceRequest, RequestId
from gateway.runtime.driver import Driver
from gateway.runtime.run import Refused
from gateway.telemetry.gauges import WorkerGauges
from gateway.workers import vitals, wire
from gateway.workers.fleet import Fleet
from gateway.workers.link import Link
from gateway.workers.wire import Close, Down, Fields, Message, Origin, Parted, Told, Up

log = logging.getLogger(__name__)


class Hub:
    """All workers, and the calls of each. What a worker leaves behind when it dies is abandoned."""

    def __init__(
        self,
        driver: Driver,
        register: Register,
        tenants: TenantResolver,
        *,
        alpha: Callable[[], float | None],
        fleet: Callable[[], Fleet],
        suspect: Callable[[BackendId], None],
        traceparent: Callable[[RequestId], str | None] | None,
        workers: int,
    ) -> None:
        """`suspect` hears of backends to which no connection could be made; `traceparent` says
        below which span an attempt stands; `workers` is how many there should be."""
        self.driver = driver
        self.register = register
        self.tenants = tenants
        self.alpha = alpha
        self.suspect = suspect
        self.traceparent = traceparent
        self.kept = KeptIds()
        self.workers: set[_Worker] = set()
        self.vitals = {number: WorkerGauges(number=number) for number in range(workers)}
        """What each has told of itself, by its number."""
        self._fleet = fleet
        self.told: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        """Take workers in from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Worker(self).link.protocol, path)

    def close(self) -> None:
        """Take nobody in any more, and let go of those who are here."""
        if self._server is not None:
            self._server.close()
        for worker in list(self.workers):
            worker.link.close()

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Have workers told of a change, before anything that follows from it."""
        del now, commands
        if isinstance(event, BackendChanged | BackendRemoved | Reconfigured):
            self._push()

    def greet(self, worker: "_Worker") -> None:
        """A worker is here."""
        self._push()
        self.workers.add(worker)
        worker.say([Down.FLEET, self.told])

    def gauges(self) -> tuple[WorkerGauges, ...]:
        """Tell how all workers are, those that should be there and are not, too."""
        calls = {worker.number: worker.calls for worker in self.workers}
        return tuple(
            replace(told, in_flight=calls.get(number, 0))
            for number, told in sorted(self.vitals.items())
        )

    def _push(self) -> None:
        """Tell all workers what there is, if that is not what they were told.

        At once: whoever has had a change made may come to any of them in the next moment.
        """
        told = self._fleet().model_dump(mode="json")
        if told != self.told:
            self.told = told
            for worker in self.workers:
                worker.say([Down.FLEET, told])
                worker.link.flush()

    def wait_for(self, call: "_Call") -> None:
        """Have a call predicted, and then entered."""
        task = asyncio.ensure_future(call.predicted())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Worker:
    """One worker process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._calls: dict[RequestId, _Call] = {}
        self.number: int | None = None
        """Which one it is, when it has said so."""
        self.link = Link(self._hear, lambda: hub.greet(self), self._lost)
        self.say = self.link.say

    @property
    def calls(self) -> int:
        """How many calls came by it and have not ended."""
        return len(self._calls)

    def _hear(self, fields: Fields) -> None:
        try:
            self._take(fields)
        except Exception:
            log.exception("a worker's message of kind %s", fields[0])

    def _take(self, fields: Fields) -> None:
        hub = self._hub
        match fields[0]:
            case Up.ARRIVED:
                self._arrived(*wire.read_arrived(fields))
            case Up.CLOSED:
                call = self._calls.pop(fields[1], None)
                if call is not None:
                    call.close(*wire.read_closed(fields))
            case Up.KEPT:
                _, number, identity, *keeper = fields
                hub.kept.note(identity, Keeper(*keeper))
                self.say([Down.ANSWER, number, None])
            case Up.WHO_KEEPS:
                _, number, identity = fields
                found = hub.kept.find(identity)
                self.say([Down.ANSWER, number, found and list(found)])
            case Up.SUSPECT:
                hub.suspect(fields[1])
            case Up.HEARD:
                hub.driver.feed(Heard(fields[1]))
            case Up.VITALS:
                told = vitals.read_told(fields)
                self.number = told.number
                hub.vitals[told.number] = told
            case _:
                self._happened(wire.read_fact(fields))

    def _arrived(self, arrival: Arrival, origin: Origin) -> None:
        hub = self._hub
        try:
            entry = hub.register.enter(arrival, hub.tenants.holder(origin.key).account)
        except ApiError as error:
            self.say(wire.error(arrival.id, error))
            return
        except Exception:
            self.say(wire.error(arrival.id, errors.INTERNAL))
            raise
        if hub.register.introduce is not None:
            hub.register.introduce(arrival.id, origin.path, origin.traceparent)
        call = self._calls[arrival.id] = _Call(hub, arrival.id, entry, self.say)
        call.begin()

    def _happened(self, event: wire.Fact) -> None:
        call = self._calls.get(event.request_id)
        if call is not None:
            call.happened(event)
        if isinstance(event, Failed) and (call is None or call.is_settled):
            self.say([Down.SETTLED, event.request_id])

    def _lost(self) -> None:
        self._hub.workers.discard(self)
        if self.number is not None:
            left = self._hub.vitals[self.number]
            self._hub.vitals[self.number] = WorkerGauges(
                number=left.number, restarts=left.restarts, lag_s=left.lag_s
            )
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.orphaned()


class _Call:
    """One call of a worker: what the driver calls a Run, and its entry in the register."""

    __slots__ = ("_entry", "_has_entered", "_hub", "_is_gone", "_say", "_tokens", "id",
                 "is_settled")  # fmt: skip

    def __init__(
        self, hub: Hub, request_id: RequestId, entry: Entry, say: Callable[[Message], None]
    ) -> None:
        self.id = request_id
        self.is_settled = False
        self._hub = hub
        self._entry = entry
        self._say = say
        self._has_entered = False
        self._is_gone = False
        self._tokens = 0

    # What the worker tells

    def begin(self) -> None:
        """It is charged; have its answer predicted and let it arrive."""
        if self._entry.ask():
            self._hub.wait_for(self)
        else:
            self._enter()

    async def predicted(self) -> None:
        """Wait for the best prediction; then let it arrive, if its client is still there."""
        try:
            await self._entry.lesson.wait()
            if not self._is_gone:
                self._enter()
        except Exception:
            log.exception("request failed", extra={"request_id": self.id})
            self._say(wire.error(self.id, errors.INTERNAL))

    def happened(self, event: wire.Fact) -> None:
        """A fact has come, perhaps too late."""
        if isinstance(event, Abandoned):
            self._is_gone = True
        elif isinstance(event, FirstToken):
            self._tokens = 1
        elif isinstance(event, Progressed):
            self._tokens = event.output_tokens
        if self._has_entered and not self.is_settled:
            self._hub.driver.feed(event)

    def close(self, how: Close, this: Try | None, parted: Parted | None) -> None:
        """Its worker is done with it."""
        self._is_gone = True
        if this is not None:
            (self._entry.refused if how is Close.REFUSED else self._entry.failed)(this)
        if self._has_entered:
            if not self.is_settled:
                self._hub.driver.feed(Abandoned(self.id, self._tokens))
            self._hub.driver.leave(self.id)
        self._entry.close(parted)

    def orphaned(self) -> None:
        """Its worker has died, and its connections with it."""
        has_answer = self._tokens > 0
        parted = Parted(Usage(self._tokens), False, None) if has_answer else None
        self.close(Close.ANSWERED, None, parted)

    def _enter(self) -> None:
        try:
            request: InferenceRequest = self._entry.request()
        except ApiError as error:
            self._say(wire.error(self.id, error))
            return
        self._has_entered = True
        self._hub.driver.enter(self, request)

    # What the driver wants

    def start(self, start: Start) -> None:
        """See Run."""
        hub = self._hub
        traceparent = None if hub.traceparent is None else hub.traceparent(self.id)
        headers = self._entry.headers(start, hub.alpha())
        self._say(wire.started(start, Told(headers, traceparent)))

    def refuse(self, why: Exception) -> None:
        """See Run."""
        assert isinstance(why, Refused)
        self._say([Down.REFUSED, self.id, why.reason, why.retry_after_s])

    def stop(self, reason: RejectReason) -> None:
        """See Run."""
        self._say([Down.STOP, self.id, reason])

    def recall(self) -> None:
        """See Run."""
        self._say([Down.RECALL, self.id])

    def settle(self) -> None:
        """See Run."""
        self.is_settled = True
