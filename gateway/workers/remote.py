"""RemoteDesk: a worker's end of the connection to the scheduler process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from gateway.api.desk import Arrival, Turn
from gateway.api.errors import ApiError
from gateway.api.first_tries import Try
from gateway.api.kept import Keeper
from gateway.api.tenants import Caller
from gateway.backends.base import Answer, BackendClient, BackendError, Call
from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.core.outcomes import RejectReason
from gateway.core.types import BackendId, RequestId
from gateway.runtime.clock import Clock
from gateway.runtime.driver import Driver
from gateway.runtime.run import Refused, Run
from gateway.workers import wire
from gateway.workers.fleet import Fleet
from gateway.workers.link import Link
from gateway.workers.wire import Close, Down, Fields, Message, Origin, Told, Up

RECONNECT_S = 0.05
RETRY_AFTER_S = 1.0

log = logging.getLogger(__name__)


def unavailable() -> ApiError:
    """Return what clients are told while there is no scheduler process."""
    return ApiError(
        status=503,
        message="The gateway's scheduler is being restarted.",
        type="overloaded_error",
        code="scheduler_restarting",
        should_retry=True,
        retry_after_s=RETRY_AFTER_S,
    )


class RemoteDesk:
    """The desk of a worker, and who keeps what. Without its scheduler it turns everybody away."""

    def __init__(
        self,
        clients: Mapping[BackendId, BackendClient],
        clock: Clock,
        on_fleet: Callable[[Fleet], None],
    ) -> None:
        """`on_fleet` is told what there is."""
        self._driver = Driver(
            _Teller(self.tell),
            clients,
            clock,
            traceparent=lambda name: self._told[name].traceparent,
        )
        self._on_fleet = on_fleet
        self._link: Link | None = None
        self._told: dict[RequestId, Told] = {}
        """What came with the start of calls."""
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[Fields | None]] = {}
        self.has_fleet = asyncio.Event()
        """It knows what there is: calls can be taken."""

    @property
    def is_connected(self) -> bool:
        """Whether calls are taken."""
        return self._link is not None

    async def serve(
        self,
        arrival: Arrival,
        caller: Caller,
        call: Call,
        body: bytes,
        relay: Callable[[Turn], Awaitable[None]],
    ) -> None:
        """See Desk."""
        if self._link is None:
            raise unavailable()
        request_id = arrival.id
        answer: Answer | None = None
        how, this = Close.ANSWERED, None
        origin = Origin(caller.key, call.path, call.header("traceparent"))
        arrive = partial(self._link.say, wire.arrived(arrival, origin))
        try:
            async with self._driver.carry(request_id, arrive, call) as (answer, start):
                decision = start.decision
                headers = self._told[request_id].headers
                await relay(
                    Turn(answer, start.backend_id, decision.decided_at, decision.queue_s, headers)
                )
        except Refused:
            how, this = Close.REFUSED, Try.of(arrival.tenant, body)
            raise
        except BackendError:
            how, this = Close.FAILED, Try.of(arrival.tenant, body)
            raise
        finally:
            self._told.pop(request_id, None)
            self.tell(wire.closed(request_id, how, this, answer))

    async def keeper(self, identity: str) -> Keeper | None:
        """See Keepers."""
        found = await self._ask(Up.WHO_KEEPS, identity)
        return None if found is None else Keeper(*found)

    async def remember(self, identity: str, keeper: Keeper) -> None:
        """See Keepers."""
        try:
            await self._ask(Up.KEPT, identity, *keeper)
        except ApiError:
            log.warning("nobody will know who keeps what was just made: there is no scheduler")

    def tell(self, message: Message) -> None:
        """Say something, if there is anybody to hear it."""
        if self._link is not None:
            self._link.say(message)

    async def stay_connected(self, path: Path) -> None:
        """Connect to the scheduler process whenever there is no connection, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            lost = asyncio.Event()
            try:
                await loop.create_unix_connection(partial(self._new_link, lost), str(path))
            except OSError:
                log.debug("no scheduler process listens at %s", path)
            else:
                await lost.wait()
            await asyncio.sleep(RECONNECT_S)

    def close(self) -> None:
        """Say what is unsaid, and go."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _new_link(self, lost: asyncio.Event) -> asyncio.Protocol:
        def on_lost() -> None:
            self._lost()
            lost.set()

        link = Link(lambda fields: self._hear(link, fields), lambda: None, on_lost)
        return link.protocol

    def _hear(self, link: Link, fields: Fields) -> None:
        kind = fields[0]
        if kind == Down.FLEET:
            self._on_fleet(Fleet.model_validate(fields[1]))
            self._link = link
            self.has_fleet.set()
        elif kind == Down.ANSWER:
            question = self._questions.get(fields[1])
            if question is not None and not question.done():
                question.set_result(fields[2])
        else:
            run = self._driver.find(fields[1])
            if run is not None:  # else its client has left, and the scheduler will hear of it
                self._turn(run, fields)

    def _turn(self, run: Run, fields: Fields) -> None:
        match fields[0]:
            case Down.START:
                start, self._told[run.id] = wire.read_started(fields)
                run.start(start)
            case Down.RECALL:
                run.recall()
            case Down.REFUSED:
                run.refuse(Refused(RejectReason(fields[2]), fields[3]))
                run.settle()
            case Down.ERROR:
                run.refuse(wire.read_error(fields))
                run.settle()
            case Down.STOP:
                run.stop(RejectReason(fields[2]))
                run.settle()
            case Down.SETTLED:
                run.settle()

    def _lost(self) -> None:
        if self._link is not None:
            log.warning("the scheduler process is gone: calls that run go on, others are refused")
            self._link = None
        self._driver.give_up(unavailable())
        for question in self._questions.values():
            if not question.done():
                question.set_exception(unavailable())

    async def _ask(self, *question: object) -> Fields | None:
        if self._link is None:
            raise unavailable()
        kind, *rest = question
        number = next(self._numbers)
        answer: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._link.say([kind, number, *rest])
        try:
            return await answer
        finally:
            del self._questions[number]


class _Teller:
    """What the worker's driver takes for the scheduler: it passes facts on; turns come later."""

    wake_at = None

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell

    def handle(self, event: Event, now: float) -> Sequence[Command]:  # noqa: ARG002
        """Pass it on."""
        self._tell(wire.fact(event))
        return ()
