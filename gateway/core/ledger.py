"""Ledger: the calls that are not settled; how each comes to wait, to run and to end."""

from heapq import heappop, heappush

from gateway.core.admission import Admission, Unreachable
from gateway.core.call import Call, CallState, call_for
from gateway.core.commands import Command, Evict, Reject, Settle, Start, WorkflowEnded
from gateway.core.events import Finished
from gateway.core.fleet import Fleet
from gateway.core.health import Health
from gateway.core.load import BackendLoad, load_of
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.placement import Placement
from gateway.core.retries import Retries
from gateway.core.stages import WorkflowEvent
from gateway.core.types import BackendId, InferenceRequest
from gateway.core.waits import Waits
from gateway.core.workflow import WorkflowRun, Workflows

MAX_ENGINE_PRIORITY = 2**53 - 1
"""vLLM reads a 64-bit integer; beyond 2^53 JSON numbers lose digits on the way."""

# Names of their own: to read an enum's member costs ten times as much as a global.
_HELD = CallState.HELD
_QUEUED = CallState.QUEUED
_RUNNING = CallState.RUNNING
_ENDED = CallState.ENDED
_QUEUE = Unreachable.QUEUE
_COMPLETED = Outcome.COMPLETED


class Ledger:
    """Keeps a call, its workflow, its backend and what is counted of it in step.

    Owned by the scheduler, which says what has happened; a method writes what is to be done about
    it to `out`, in order.
    """

    def __init__(
        self,
        fleet: Fleet,
        placement: Placement,
        admission: Admission,
        health: Health,
        retries: Retries,
        workflows: Workflows,
        *,
        learns_profiles: bool,
    ) -> None:
        self.fleet = fleet
        self.placement = placement
        self.admission = admission
        self.health = health
        self.retries = retries
        self.workflows = workflows
        self.calls: dict[str, Call] = {}
        """Every call that is not settled, by request id."""
        self.waits = Waits()
        self.arrivals = 0
        self._learns_profiles = learns_profiles
        self._silent: list[tuple[float, int, Call]] = []
        """Heap of running calls that report no first token, by when it should be out."""

    @property
    def running(self) -> int:
        """Calls in engines, those of removed backends included."""
        return len(self.calls) - self.admission.total.requests

    # To wait, to run

    def call_for(self, request: InferenceRequest, now: float) -> Call:
        """Return the record of a request that has just come."""
        self.arrivals += 1
        return call_for(request, self.arrivals, self.fleet.reference(request.model), now)

    def take_in(self, call: Call, now: float) -> None:
        """A new call is to be settled one day; for now it waits."""
        self.calls[call.request.id] = call
        self.wait(call, now)
        if call.run is not None:
            self.workflows.join(call.run, call, now)

    def wait(self, call: Call, now: float) -> None:
        """The call is held, queued or paused from now on."""
        self.admission.entered(call.request, call.reference_s)
        self.waits.add(call, now)

    def _unwait(self, call: Call) -> None:
        self.admission.left(call.request, call.reference_s)

    def make_ready(self, call: Call, now: float, out: list[Command]) -> None:
        """Nothing but room is missing any more: queue the call, start what can start."""
        was_held = call.state is _HELD
        call.state = _QUEUED
        call.ready_at = now if was_held else call.arrived_at
        if call.run is not None:
            self.workflows.enter(call.run, call, now)
        elif call.deadline_at is not None:
            call.budget_s = max(call.deadline_at - call.ready_at, 0.0)
        unreachable = self.admission.limits.on_unreachable_deadline
        if unreachable is not _QUEUE and self._is_out_of_reach(call, now):
            if unreachable is Unreachable.REJECT:
                self.turn_away(call, RejectReason.DEADLINE_UNREACHABLE, was_held, now, out)
                return
            call.is_hopeless = True
        self.send(self.placement.add([call], now), now, out)

    def _is_out_of_reach(self, call: Call, now: float) -> bool:
        """Return whether the deadline is missed with the configured probability, even unloaded."""
        if call.deadline_at is None or call.reference_step_s <= 0:
            return False
        rest_s = call.remaining_s - call.reference_s
        left_s = call.deadline_at - now - rest_s - call.reference_prefill_s
        late = call.request.output.exceeds(left_s / call.reference_step_s)
        return late >= self.admission.limits.late_probability

    def send(self, started: list[Call], now: float, out: list[Command]) -> None:
        """Put the starts of calls that placement has let go into words."""
        if not started:
            return
        ranks = self.placement.policy.ranks_in_engine
        for call in started:
            self._unwait(call)
            self.admission.started(now)
            call.state = _RUNNING
            call.started_at = now
            call.attempts += 1
            rank_ms = call.order_key * 1000 if ranks else 0.0
            rank = int(max(min(rank_ms, MAX_ENGINE_PRIORITY), -MAX_ENGINE_PRIORITY))
            load, decision = load_of(call), call.decision
            assert decision is not None
            self.health.started(load, now)
            if call.attempts == 1:
                self.retries.earn()
            if self._learns_profiles:
                load.watch(call, now)
            out.append(Start(call.request.id, load.id, rank, decision, call.attempts))
            if not call.request.reports_first_token:
                heappush(self._silent, (call.prefill_ends_at, call.sequence, call))

    def room_changed(self, load: BackendLoad, now: float, out: list[Command]) -> None:
        """A backend has room, or news that changes its score: start what can start."""
        self.send(self.placement.room_changed(load, now), now, out)

    def displace(self, load: BackendLoad, now: float, out: list[Command]) -> None:
        """Let the calls that wait in the wrong place since a backend changed wait elsewhere."""
        self.send(self.placement.add(self.placement.displaced(load), now), now, out)

    def assume_first_tokens(self, now: float) -> None:
        """Calls whose prefill should be over by now no longer stand in others' way."""
        silent = self._silent
        while silent and silent[0][0] <= now:
            due_at, _, call = heappop(silent)
            if call.state is _RUNNING and call.prefill_ends_at == due_at:
                load_of(call).prefill_done(call)

    def learn(self, call: Call, now: float, finished: Finished | None) -> None:
        """Let the backend's profile learn from a call that leaves it; a second time is nothing."""
        load = load_of(call)
        if load.learn(call, now, finished):
            self.fleet.recalibrated(load)

    # Endings

    def reject(self, call: Call, reason: RejectReason, now: float, out: list[Command]) -> None:
        retry_after_s = self._retry_after_s(reason, now)
        out.append(Reject(call.request.id, reason, retry_after_s))
        out.append(settlement(call, Outcome.REJECTED, reason, None, now))

    def turn_away(
        self, call: Call, reason: RejectReason, was_held: bool, now: float, out: list[Command]
    ) -> None:
        """Refuse a call that was taken in, perhaps held, but is in no queue yet."""
        self._unwait(call)
        call.state = _ENDED
        self._forget(call, now, answered=False)
        if was_held:
            out.append(Evict(call.request.id, reason))
            out.append(settlement(call, Outcome.EVICTED, reason, None, now))
        else:
            self.reject(call, reason, now, out)
        self._after_workflow_call(call, now, out)

    def end_wait(
        self,
        call: Call,
        outcome: Outcome,
        reason: RejectReason | None,
        now: float,
        out: list[Command],
    ) -> None:
        """Close the books of a call that is held or queued."""
        if call.state is _QUEUED:
            self.placement.remove(call)
        self._unwait(call)
        call.state = _ENDED
        self._forget(call, now, answered=False)
        if reason is not None:
            out.append(Evict(call.request.id, reason, self._retry_after_s(reason, now)))
        out.append(settlement(call, outcome, reason, None, now))
        self._after_workflow_call(call, now, out)

    def end_run(
        self,
        call: Call,
        outcome: Outcome,
        reason: RejectReason | FailureKind | None,
        now: float,
        out: list[Command],
    ) -> None:
        """Close the books of a running call, then fill the room it leaves."""
        load = load_of(call)
        self.learn(call, now, None)
        load.stop(call)
        self.health.left(load, call, now)
        call.state = _ENDED
        self.placement.settle(call, load)
        self._forget(call, now, answered=outcome is _COMPLETED)
        out.append(settlement(call, outcome, reason, load.id, now))
        self._after_workflow_call(call, now, out)
        self.room_changed(load, now, out)

    def _forget(self, call: Call, now: float, *, answered: bool) -> None:
        self.calls.pop(call.request.id, None)
        if call.run is not None:
            own_s = call.own_s(call.tokens_seen)
            self.workflows.leave(call.run, call, now, answered, own_s)

    def _retry_after_s(self, reason: RejectReason, now: float) -> float | None:
        if reason in {RejectReason.QUEUE_FULL, RejectReason.TENANT_QUEUE_FULL}:
            return self._drain_s(now)
        if reason in {RejectReason.QUEUE_TIMEOUT, RejectReason.NO_HEALTHY_BACKEND}:
            return max(self._drain_s(now), 1.0)
        return None

    def _drain_s(self, now: float) -> float:
        total = self.admission.total
        backlog_s = total.predicted_s + sum(load.backlog_s for load in self.fleet.loads.values())
        return self.admission.drain_s(now, total.requests, backlog_s / max(self.running, 1))

    def _after_workflow_call(self, call: Call, now: float, out: list[Command]) -> None:
        run = call.run
        if run is None or self.workflows.get(run.key) is not run:
            return
        self.release_held(run, now, out)
        if self.workflows.get(run.key) is run and self.workflows.is_over(run):
            self.close(run, WorkflowEvent.CLOSED, now, out)

    def release_held(self, run: WorkflowRun, now: float, out: list[Command]) -> None:
        for held in self.workflows.unblocked(run):
            if held.state is _HELD:  # to refuse one may release the next
                self.make_ready(held, now, out)

    def close(self, run: WorkflowRun, event: WorkflowEvent, now: float, out: list[Command]) -> None:
        ended_at = run.last_active_at if event is WorkflowEvent.WENT_IDLE else now
        self.workflows.close(run, event)
        out.append(
            WorkflowEnded(
                key=run.key,
                name=run.name,
                state=run.state,
                opened_at=run.opened_at,
                ended_at=ended_at,
                deadline_at=run.deadline_at,
                calls=run.total_calls,
            )
        )


def settlement(
    call: Call,
    outcome: Outcome,
    reason: RejectReason | FailureKind | None,
    backend_id: BackendId | None,
    now: float,
) -> Settle:
    request, run, ref = call.request, call.run, call.request.workflow
    deadline_at = call.deadline_at
    if deadline_at is None and run is not None:
        deadline_at = run.deadline_at  # it never was ready
    return Settle(
        request_id=request.id,
        outcome=outcome,
        reason=reason,
        tenant=request.tenant,
        model=request.model,
        workflow=ref.key if ref else None,
        workflow_name=run.name if run else ref.name if ref else None,
        stage=ref.stage if ref else None,
        backend_id=backend_id,
        attempts=call.attempts,
        arrived_at=call.came_at,
        started_at=call.started_at,
        first_token_at=call.first_token_at,
        ended_at=now,
        prompt_tokens=call.prompt_tokens_told or request.prompt_tokens,
        output_tokens=call.tokens_seen,
        predicted_output_tokens=request.output.mean_tokens,
        predicted_s=call.decision.predicted_s if call.decision else None,
        deadline_at=deadline_at,
    )
