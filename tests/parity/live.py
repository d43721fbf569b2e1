"""The live half of parity: driver, clients and engines as coroutines in virtual time.

The engines are the simulator's own model behind the live gateway's seam, so that whatever differs
is in the plumbing: who calls the scheduler, when, and what its commands become.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from gateway.backends.base import BackendError, Call, ConnectionBroken, Listener, Usage
from gateway.core.commands import Command
from gateway.core.events import BackendChanged, Event
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, BackendState, InferenceRequest
from gateway.runtime.driver import Driver
from gateway.runtime.run import Refused
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, FirstTokenAt
from gateway.sim.simulator import Arrival, Fault, FaultKind
from gateway.sim.trace import TraceCall
from tests.runtime.live_run import TimedAnswer
from tests.virtual_time import VirtualClock, sleep_until

Log = list[tuple[float, Event, list[Command]]]


class EngineBackend:
    """An engine model behind the seam to backends."""

    def __init__(self, engine: EngineModel) -> None:
        self.engine = engine
        self.work: dict[str, tuple[TraceCall, InferenceRequest]] = {}
        """What calls really are, by request id."""
        self._open: dict[str, tuple[asyncio.Future[Usage], Listener]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> TimedAnswer:
        """Have the engine do it all; tell of its first token on the way."""
        del attempt
        loop = asyncio.get_running_loop()
        traced, request = self.work[call.upstream_id]
        ended: asyncio.Future[Usage] = loop.create_future()
        self._open[request.id] = ended, listener
        self.engine.submit(
            EngineCall(
                request.id,
                traced.prompt_tokens,
                traced.output_tokens,
                request.prefix,
                engine_priority,
            ),
            loop.time(),
        )
        self.plan()
        return TimedAnswer(await ended)

    async def close(self) -> None:
        """Do nothing."""

    def crash(self) -> None:
        """Lose all calls, in the order in which they came."""
        for call_id in self.engine.crash(asyncio.get_running_loop().time()):
            self._open.pop(call_id)[0].set_exception(ConnectionBroken())
        self.plan()

    def plan(self) -> None:
        """Set the alarm for the engine's next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.engine.next_event_at()
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._advance)

    def _advance(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for event in self.engine.advance(loop.time()):
            if isinstance(event, FirstTokenAt):
                self._open[event.call_id][1].first_token()
            else:
                ended, listener = self._open.pop(event.call_id)
                usage = Usage(event.output_tokens)
                listener.finished(usage)
                ended.set_result(usage)
        # Calls that take the room just made are submitted before the next step begins.
        loop.call_soon(self.plan)


class LiveRun:
    """One run of the live gateway over arrivals that a simulation has played before."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[BackendId, EngineModel],
        requests: Mapping[str, InferenceRequest],
    ) -> None:
        self.log: Log = []
        self._scheduler = scheduler
        self._requests = requests
        self._backends = {name: EngineBackend(engine) for name, engine in engines.items()}
        self._driver = Driver(scheduler, self._backends, VirtualClock(), [self._observe])

    async def play(self, arrivals: Iterable[Arrival], faults: Sequence[Fault]) -> Log:
        """Play everything to its end and return the decision log."""
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._strike(fault))
            for arrival in arrivals:
                tasks.create_task(self._client(arrival))
        while (at := self._scheduler.wake_at) is not None and at < float("inf"):
            told = len(self.log)
            await sleep_until(at)
            await asyncio.sleep(1e-6)
            assert len(self.log) > told, f"nobody woke the scheduler at {at}"
        return self.log

    def _observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        self.log.append((now, event, list(commands)))

    async def _client(self, arrival: Arrival) -> None:
        """Send a step, wait for all of it, use a tool, send the next; give up at a failure."""
        await sleep_until(arrival.at)
        sent = 0
        for number, step in enumerate(arrival.workflow.steps):
            if number:
                await sleep_until(asyncio.get_running_loop().time() + step.tool_s)
            calls = [
                self._call(f"{arrival.id}/{sent + offset}", call)
                for offset, call in enumerate(step.calls)
            ]
            sent += len(calls)
            if not all(await asyncio.gather(*calls)):
                return

    async def _call(self, request_id: str, traced: TraceCall) -> bool:
        request = self._requests[request_id]
        for backend in self._backends.values():
            backend.work[request_id] = traced, request
        try:
            call = Call(path="/v1/completions", body=b"{}", upstream_id=request_id)
            async with self._driver.run(request, call):
                return True
        except (Refused, BackendError):
            return False

    async def _strike(self, fault: Fault) -> None:
        await sleep_until(fault.at)
        backend = self._backends[fault.backend_id]
        known = self._scheduler.fleet.loads[fault.backend_id].backend
        match fault.kind:
            case FaultKind.SLOW:
                backend.engine.slow_down(fault.factor, fault.at)
                backend.plan()
            case FaultKind.RECOVER:
                self._driver.feed(BackendChanged(known, BackendState.UP))
            case FaultKind.FAIL:
                self._driver.feed(BackendChanged(known, BackendState.DOWN))
                backend.crash()
