"""simulate: a workload played against the scheduler and modelled engines, in virtual time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf
from zlib import crc32

from gateway.core.commands import Command, Settle, Start, Stop, WorkflowEnded
from gateway.core.events import (
    Arrived,
    BackendChanged,
    Event,
    Failed,
    Finished,
    FirstToken,
    TimePassed,
)
from gateway.core.lengths import LengthDistribution
from gateway.core.outcomes import FailureKind, Outcome
from gateway.core.record import Record
from gateway.core.scheduler import Scheduler
from gateway.core.types import (
    ANONYMOUS,
    BackendId,
    BackendState,
    InferenceRequest,
    PromptSegment,
    RequestId,
    TenantId,
    WorkflowKey,
    WorkflowRef,
)
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, FirstTokenAt
from gateway.sim.trace import SINGLE, TraceCall, TraceWorkflow

MODEL = "m"
"""The one model of a simulated fleet."""
Predict = Callable[[TraceCall], LengthDistribution]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival(Record):
    """A workflow that a client starts at an instant."""

    id: str
    at: float
    workflow: TraceWorkflow
    deadline_s: float | None = None
    tenant: TenantId = ANONYMOUS


class FaultKind(StrEnum):
    """What can happen to an engine in a simulation."""

    FAIL = "fail"
    """It dies with all it has; the gateway notices at once."""
    RECOVER = "recover"
    SLOW = "slow"
    """Its steps take `factor` times as long from then on; the gateway is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Record):
    """Something that happens to an engine."""

    at: float
    backend_id: BackendId
    kind: FaultKind
    factor: float = 1.0


@dataclass(slots=True, kw_only=True)
class WorkflowResult:
    """How a workflow went, as its client saw it."""

    arrival: Arrival
    ended_at: float | None = None
    """None: some call of it failed, or the run ended first."""

    @property
    def latency_s(self) -> float | None:
        """Seconds from the first call to the last answer."""
        return None if self.ended_at is None else self.ended_at - self.arrival.at


@dataclass(slots=True)
class Run:
    """What a simulation leaves behind."""

    workflows: list[WorkflowResult] = field(default_factory=list)
    settled: list[Settle] = field(default_factory=list)
    log: list[tuple[float, Event, list[Command]]] = field(default_factory=list)
    """Every event with its commands, if asked for."""
    preemptions: int = 0
    ended_at: float = 0.0


@dataclass(slots=True)
class _Client:
    """One workflow's client: sends a step, waits for all of it, sends the next."""

    result: WorkflowResult
    step: int = 0
    open_calls: int = 0
    sent_calls: int = 0


def simulate(
    arrivals: Iterable[Arrival],
    scheduler: Scheduler,
    engines: Mapping[BackendId, EngineModel],
    predict: Predict,
    *,
    faults: Sequence[Fault] = (),
    streams: bool = True,
    keep_log: bool = False,
) -> Run:
    """Play `arrivals` to the end and return what happened.

    Without `streams` the gateway never hears of first tokens, as when clients do not stream.
    Deterministic: events at one instant are taken in the order in which they were caused.
    """
    return _Simulation(scheduler, engines, predict, streams, keep_log).play(arrivals, faults)


class _Simulation:
    """The agenda, the clients and the engines of one run."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[BackendId, EngineModel],
        predict: Predict,
        streams: bool,
        keep_log: bool,
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._predict = predict
        self._streams = streams
        self._keep_log = keep_log
        self._run = Run()
        self._agenda: list[tuple[float, int, _Client | Fault]] = []
        self._sequence = 0
        self._engine_agenda: list[tuple[float, BackendId]] = []
        self._engine_due: dict[BackendId, float | None] = {}
        self._clients: dict[str, tuple[_Client, TraceCall]] = {}
        """By request id: who waits for it, and its true length."""

    def play(self, arrivals: Iterable[Arrival], faults: Sequence[Fault]) -> Run:
        """Run until nothing is left to happen."""
        for arrival in arrivals:
            result = WorkflowResult(arrival=arrival)
            self._run.workflows.append(result)
            self._sequence += 1
            self._agenda.append((arrival.at, self._sequence, _Client(result)))
        for fault in faults:
            self._sequence += 1
            self._agenda.append((fault.at, self._sequence, fault))
        heapify(self._agenda)
        while self._advance():
            pass
        self._run.preemptions = sum(engine.preemptions for engine in self._engines.values())
        return self._run

    def _advance(self) -> bool:
        """Let the next thing happen; return whether there was one."""
        engine_agenda, agenda = self._engine_agenda, self._agenda
        while engine_agenda and self._engine_due[engine_agenda[0][1]] != engine_agenda[0][0]:
            heappop(engine_agenda)  # the engine has been told something since
        engine_at = engine_agenda[0][0] if engine_agenda else inf
        agenda_at = agenda[0][0] if agenda else inf
        next_at = min(engine_at, agenda_at)
        wake_at = self._scheduler.wake_at
        if wake_at is not None and wake_at < next_at:
            self._feed(TimePassed(), wake_at)
            return True
        if next_at == inf:
            return False
        self._run.ended_at = next_at
        if engine_at <= agenda_at:
            self._advance_engine(heappop(engine_agenda)[1], engine_at)
        else:
            at, _, what = heappop(agenda)
            if isinstance(what, Fault):
                self._strike(what)
            else:
                self._send_step(what, at)
        return True

    def _advance_engine(self, backend_id: BackendId, now: float) -> None:
        engine = self._engines[backend_id]
        self._engine_due[backend_id] = None
        for event in engine.advance(now):
            if isinstance(event, FirstTokenAt):
                if self._streams:
                    self._feed(FirstToken(RequestId(event.call_id)), event.at)
            else:
                self._feed(Finished(RequestId(event.call_id), event.output_tokens), event.at)
        self._plan(backend_id)

    def _plan(self, backend_id: BackendId) -> None:
        """Put the engine's next event on the agenda, in place of what stood there."""
        at = self._engines[backend_id].next_event_at()
        if at != self._engine_due.get(backend_id):
            self._engine_due[backend_id] = at
            if at is not None:
                heappush(self._engine_agenda, (at, backend_id))

    def _send_step(self, client: _Client, now: float) -> None:
        arrival = client.result.arrival
        workflow = arrival.workflow
        calls = workflow.steps[client.step].calls
        is_last_step = client.step == len(workflow.steps) - 1
        client.open_calls = len(calls)
        for number, call in enumerate(calls):
            request_id = RequestId(f"{arrival.id}/{client.sent_calls}")
            client.sent_calls += 1
            self._clients[request_id] = (client, call)
            final = is_last_step and number == len(calls) - 1
            self._feed(Arrived(self._request(request_id, call, arrival, final)), now)

    def _request(
        self, request_id: RequestId, call: TraceCall, arrival: Arrival, final: bool
    ) -> InferenceRequest:
        name = arrival.workflow.name
        workflow = None
        if name != SINGLE:
            workflow = WorkflowRef(
                key=WorkflowKey(arrival.tenant, arrival.id),
                name=name,
                stage=call.stage,
                deadline_s=arrival.deadline_s,
                final=final,
            )
        deadline_s = arrival.deadline_s
        prefix: tuple[PromptSegment, ...] = ()
        if call.template_tokens and call.template is not None:
            prefix = (PromptSegment(crc32(call.template.encode()), call.template_tokens),)
        return InferenceRequest(
            id=request_id,
            model=MODEL,
            prompt_tokens=call.prompt_tokens,
            output=self._predict(call),
            tenant=arrival.tenant,
            prefix=prefix,
            workflow=workflow,
            deadline_at=(
                arrival.at + deadline_s if workflow is None and deadline_s is not None else None
            ),
            reports_first_token=self._streams,
        )

    def _feed(self, event: Event, now: float) -> None:
        commands = self._scheduler.handle(event, now)
        if self._keep_log:
            self._run.log.append((now, event, commands))
        for command in commands:
            self._carry_out(command, now)

    def _carry_out(self, command: Command, now: float) -> None:
        if isinstance(command, Start):
            request_id = command.request_id
            call = self._clients[request_id][1]
            request = self._scheduler.calls[request_id].request
            engine = self._engines[command.backend_id]
            if not engine.fits(call.prompt_tokens, call.output_tokens):
                self._feed(Failed(request_id, FailureKind.INVALID_REQUEST, retryable=False), now)
                return
            engine.submit(
                EngineCall(
                    request_id,
                    call.prompt_tokens,
                    call.output_tokens,
                    request.prefix,
                    command.engine_priority,
                ),
                now,
            )
            self._plan(command.backend_id)
        elif isinstance(command, Settle):
            self._run.settled.append(command)
            self._answer(command, now)
        elif isinstance(command, Stop):
            self._engines[command.backend_id].abort(command.request_id, now)
            self._plan(command.backend_id)
        elif isinstance(command, WorkflowEnded):
            pass  # the client's view counts here

    def _answer(self, settled: Settle, now: float) -> None:
        client, _ = self._clients.pop(settled.request_id)
        client.open_calls -= 1
        if settled.outcome is not Outcome.COMPLETED:
            client.step = len(client.result.arrival.workflow.steps)  # this client gives up
            return
        steps = client.result.arrival.workflow.steps
        if client.open_calls or client.step >= len(steps):
            return
        client.step += 1
        if client.step == len(steps):
            client.result.ended_at = now
            return
        self._sequence += 1
        heappush(self._agenda, (now + steps[client.step].tool_s, self._sequence, client))

    def _strike(self, fault: Fault) -> None:
        engine = self._engines[fault.backend_id]
        backend = self._scheduler.fleet.loads[fault.backend_id].backend
        match fault.kind:
            case FaultKind.SLOW:
                engine.slow_down(fault.factor, fault.at)
                self._plan(fault.backend_id)
            case FaultKind.RECOVER:
                self._feed(BackendChanged(backend, BackendState.UP), fault.at)
            case FaultKind.FAIL:
                lost = engine.crash(fault.at)
                self._plan(fault.backend_id)
                self._feed(BackendChanged(backend, BackendState.DOWN), fault.at)
                for call_id in lost:
                    self._feed(
                        Failed(RequestId(call_id), FailureKind.RESET, retryable=True), fault.at
                    )
