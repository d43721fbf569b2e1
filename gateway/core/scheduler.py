"""Scheduler: one event in, all commands out. The live gateway and the simulator run this object."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import assert_never

from gateway.core.admission import UNBOUNDED, Admission, QueueLimits, Unreachable
from gateway.core.breaker import HealthRules
from gateway.core.call import Call, CallState
from gateway.core.commands import Command, Evict, Recall, Reject, Settle, Start, Stop, WorkflowEnded
from gateway.core.cost import prefill_s, step_s
from gateway.core.events import (
    Abandoned,
    Arrived,
    BackendChanged,
    BackendRemoved,
    BackendTrusted,
    Event,
    Failed,
    Finished,
    FirstToken,
    Heard,
    PolicyChanged,
    Progressed,
    Reconfigured,
    ShutdownBegan,
    TimePassed,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowDeclared,
)
from gateway.core.fleet import Fleet
from gateway.core.health import Health
from gateway.core.load import BackendLoad
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.placement import Placement
from gateway.core.policies.base import Policy
from gateway.core.queues import FairShares
from gateway.core.retries import Retries, RetryRules
from gateway.core.stages import WorkflowEvent
from gateway.core.types import Backend, BackendId, BackendState, InferenceRequest
from gateway.core.waits import WAITING, Waits
from gateway.core.workflow import WorkflowRun, Workflows

MAX_ENGINE_PRIORITY = 2**53 - 1
"""vLLM reads a 64-bit integer; beyond 2^53 JSON numbers lose digits on the way."""


class Scheduler:
    """Holds what waits and what runs on each backend.

    Not thread-safe and never awaits: one caller feeds it, so each `handle` is atomic. `fleet`,
    `placement`, `workflows`, `admission` and `calls` may be read between events, by the way.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        policy: Policy,
        *,
        limits: QueueLimits = UNBOUNDED,
        workflows: Workflows | None = None,
        shares: FairShares | None = None,
        retries: RetryRules | None = None,
        health: HealthRules | None = None,
        learns_profiles: bool = True,
    ) -> None:
        self._shares = shares or FairShares()
        self.fleet = Fleet(backends, self._shares)
        self.placement = Placement(self.fleet, policy, self._shares)
        self.admission = Admission(limits)
        self.health = Health(self.fleet, health or HealthRules())
        self.retries = Retries(retries or RetryRules())
        self.workflows = Workflows() if workflows is None else workflows
        self.calls: dict[str, Call] = {}
        """Every call that is not settled, by request id."""
        self.wake_at: float | None = None
        """When `TimePassed` should be fed at the latest; None: no need."""
        self._learns_profiles = learns_profiles
        self._sequence = 0
        self._shutting_down = False
        self._waits = Waits()
        self._silent: list[tuple[float, int, Call]] = []
        """Heap of running calls that report no first token, by when it should be out."""

    def handle(  # noqa: C901, PLR0912 - one case an event
        self, event: Event, now: float
    ) -> list[Command]:
        """Take in one fact that became true at `now`; return what to do about it, in order."""
        out: list[Command] = []
        self._assume_first_tokens(now)
        match event:
            case Arrived(request):
                self._let_time_pass(now, out)  # who is overdue takes nobody's place
                self._arrive(request, now, out)
            case Finished():
                self._finish(event, now, out)
            case FirstToken(request_id):
                self._first_token(request_id, now, out)
            case Progressed(request_id, output_tokens):
                self._progress(request_id, output_tokens, now, out)
            case Failed():
                self._fail(event, now, out)
            case Abandoned(request_id, output_tokens):
                self._abandon(request_id, output_tokens, now, out)
            case BackendChanged(backend, state):
                self._change_backend(backend, state, now, out)
            case BackendRemoved(backend_id):
                self._remove_backend(backend_id, now, out)
            case BackendTrusted(backend_id):
                self._trust(backend_id, now, out)
            case Heard(backend_id):
                self._hear(self.fleet.loads.get(backend_id), now, out)
            case PolicyChanged(policy):
                self._change_policy(policy, now, out)
            case Reconfigured():
                self._reconfigure(event, now, out)
            case WorkflowDeclared(key, spec, deadline_s, strict):
                run = self.workflows.declare(key, spec, deadline_s, strict, now)
                self._release_held(run, now, out)
            case WorkflowCompleted(key):
                self._complete(self.workflows.get(key), now, out)
            case WorkflowCancelled(key):
                self._cancel(self.workflows.get(key), now, out)
            case ShutdownBegan():
                self._shutting_down = True
            case TimePassed():
                pass
            case _:
                assert_never(event)
        # After the event: nothing is started where, or for whom, it says that there is nobody.
        self._let_time_pass(now, out)
        self._send(self.placement.fill_gaps(now), now, out)
        for surplus in self.workflows.surplus():
            self._close(surplus, WorkflowEvent.WENT_IDLE, now, out)
        self._set_alarm()
        return out

    @property
    def waiting(self) -> int:
        """Calls held or queued."""
        return self.admission.total.requests

    @property
    def running(self) -> int:
        """Calls in engines, those of removed backends included."""
        return len(self.calls) - self.waiting

    # Arrival

    def _arrive(self, request: InferenceRequest, now: float, out: list[Command]) -> None:
        if request.id in self.calls:
            # Not settled: the id's books belong to the call that has it.
            out.append(Reject(request.id, RejectReason.DUPLICATE_ID))
            return
        call = self._call_for(request, now)
        ref = request.workflow
        reason = self._refusal(call)
        if reason is None and ref is not None:
            call.run = self.workflows.open(ref, call.arrived_at)
            if call.run.strict and self.workflows.blocks(call.run, ref.stage):
                reason = RejectReason.STAGE_NOT_READY
        if reason is not None:
            self._reject(call, reason, now, out)
            return
        self.calls[request.id] = call
        self._wait(call, now)
        if call.run is not None and ref is not None:
            self.workflows.join(call.run, call, now)
            if self.workflows.blocks(call.run, ref.stage):
                call.state = CallState.HELD
                return
        self._make_ready(call, now, out)

    def _call_for(self, request: InferenceRequest, now: float) -> Call:
        self._sequence += 1
        call = Call(
            request=request,
            sequence=self._sequence,
            arrived_at=now if request.first_seen_at is None else request.first_seen_at,
            came_at=now,
            prefix_tokens=sum(tokens for _, tokens in request.prefix) if request.prefix else 0,
            output_tokens=max(round(request.output.mean_tokens), 1),
            deadline_at=request.deadline_at,
        )
        reference = self.fleet.reference(request.model)
        if reference is not None:
            call.reference_prefill_s = prefill_s(
                reference, max(request.prompt_tokens - call.prefix_tokens, 1)
            )
            context_tokens = request.prompt_tokens + call.output_tokens / 2
            call.reference_kv_tokens = reference.kv_tokens
            call.reference_step_s = step_s(reference, 1, context_tokens)
        call.reference_s = _reference_s(call, call.output_tokens)
        call.remaining_s = call.total_s = call.reference_s
        return call

    def _refusal(self, call: Call) -> RejectReason | None:
        request = call.request
        if self._shutting_down:
            return RejectReason.SHUTTING_DOWN
        if not self.fleet.serving(request.model):
            # A backend that was never reached may turn out to have it.
            unseen = any(not load.backend.models for load in self.fleet.loads.values())
            return RejectReason.NO_HEALTHY_BACKEND if unseen else RejectReason.MODEL_NOT_FOUND
        if not self.fleet.able(request):
            return RejectReason.NOT_SUPPORTED
        pool = self.fleet.pool(request)
        if not pool.loads:
            return RejectReason.TOO_LARGE
        if not pool.open():
            return RejectReason.NO_HEALTHY_BACKEND
        return self.admission.refusal(request.tenant, request.body_bytes)

    def _make_ready(self, call: Call, now: float, out: list[Command]) -> None:
        """Nothing but room is missing any more: queue the call, start what can start."""
        was_held = call.state is CallState.HELD
        call.state = CallState.QUEUED
        call.ready_at = now if was_held else call.arrived_at
        if call.run is not None:
            self.workflows.enter(call.run, call, now)
        elif call.deadline_at is not None:
            call.budget_s = max(call.deadline_at - call.ready_at, 0.0)
        unreachable = self.admission.limits.on_unreachable_deadline
        if unreachable is not Unreachable.QUEUE and self._is_out_of_reach(call, now):
            if unreachable is Unreachable.REJECT:
                self._turn_away(call, was_held, now, out)
                return
            call.is_hopeless = True
        self._send(self.placement.add([call], now), now, out)

    def _is_out_of_reach(self, call: Call, now: float) -> bool:
        """Return whether the deadline is missed with the configured probability, even unloaded."""
        if call.deadline_at is None or call.reference_step_s <= 0:
            return False
        rest_s = call.remaining_s - call.reference_s
        left_s = call.deadline_at - now - rest_s - call.reference_prefill_s
        late = call.request.output.exceeds(left_s / call.reference_step_s)
        return late >= self.admission.limits.late_probability

    # Running

    def _send(self, started: list[Call], now: float, out: list[Command]) -> None:
        """Put the starts of calls that placement has let go into words."""
        ranks = self.placement.policy.ranks_in_engine
        for call in started:
            self._unwait(call)
            self.admission.started(now)
            call.state = CallState.RUNNING
            call.started_at = now
            call.attempts += 1
            rank_ms = call.order_key * 1000 if ranks else 0.0
            rank = int(max(min(rank_ms, MAX_ENGINE_PRIORITY), -MAX_ENGINE_PRIORITY))
            load, decision = self._load_of(call), call.decision
            assert decision is not None
            self.health.started(load, now)
            if call.attempts == 1:
                self.retries.earn()
            if self._learns_profiles:
                load.watch(call, now)
            out.append(Start(call.request.id, load.id, rank, decision, call.attempts))
            if not call.request.reports_first_token:
                heappush(self._silent, (call.prefill_ends_at, call.sequence, call))

    def _first_token(self, request_id: str, now: float, out: list[Command]) -> None:
        call = self.calls.get(request_id)
        if call is None or call.state is not CallState.RUNNING or call.first_token_at is not None:
            return
        call.first_token_at = now
        load = self._load_of(call)
        self.health.heard(load, now)
        load.calibration.first_token(call, now)
        load.prefill_done(call)
        self._send(self.placement.room_changed(load, now), now, out)

    def _assume_first_tokens(self, now: float) -> None:
        """Calls whose prefill should be over by now no longer stand in others' way."""
        silent = self._silent
        while silent and silent[0][0] <= now:
            due_at, _, call = heappop(silent)
            if call.state is CallState.RUNNING and call.prefill_ends_at == due_at:
                self._load_of(call).prefill_done(call)

    def _hear(self, load: BackendLoad | None, now: float, out: list[Command]) -> None:
        if load is not None and self.health.heard(load, now):
            self._send(self.placement.room_changed(load, now), now, out)

    def _progress(
        self, request_id: str, output_tokens: int, now: float, out: list[Command]
    ) -> None:
        call = self.calls.get(request_id)
        if call is None or call.state is not CallState.RUNNING:
            return
        call.tokens_seen = output_tokens
        remaining = max(round(call.request.output.remaining_mean(output_tokens)), 1)
        load = self._load_of(call)
        load.progress(call, remaining, output_tokens)
        self._hear(load, now, out)

    def _finish(self, event: Finished, now: float, out: list[Command]) -> None:
        call = self.calls.get(event.request_id)
        if call is None or call.state is not CallState.RUNNING:
            return
        call.tokens_seen = event.output_tokens
        call.prompt_tokens_told = event.prompt_tokens
        load = self._load_of(call)
        self.health.succeeded(load, call, now)
        self._learn(call, now, event)
        self._end_run(call, Outcome.COMPLETED, None, now, out)

    def _fail(self, event: Failed, now: float, out: list[Command]) -> None:
        call = self.calls.get(event.request_id)
        if call is None or call.state is not CallState.RUNNING:
            return
        call.tokens_seen = event.output_tokens
        load = self._load_of(call)
        self.health.failed(load, call, event.kind, now)
        invalid = event.kind is FailureKind.INVALID_REQUEST
        # With no backend up it could only wait for its timeout; a new call would be refused too.
        may_retry = event.retryable and not invalid and bool(self.fleet.open_for(call))
        if may_retry and (call.is_recalled or self.retries.may(call)):
            self._retry(call, now, out)
        else:
            invalid = invalid or event.kind is FailureKind.UNSUPPORTED
            outcome = Outcome.INVALID if invalid else Outcome.FAILED
            self._end_run(call, outcome, event.kind, now, out)
        if load.breaker.is_open:
            self._send(self.placement.add(self.placement.displaced(load), now), now, out)

    def _retry(self, call: Call, now: float, out: list[Command]) -> None:
        """Queue a call that a backend failed again, in its old place."""
        load = self._load_of(call)
        call.tried.add(load.id)
        call.is_recalled = False
        self._learn(call, now, None)
        load.stop(call)
        self.health.left(load, call, now)
        self.placement.settle(call, load)
        call.started_at = call.first_token_at = None
        call.tokens_seen = 0
        self._wait(call, now)
        if all(other.id in call.tried for other in self.fleet.open_for(call)):
            self.retries.pause(call, now)
        else:
            call.state = CallState.QUEUED
            self._send(self.placement.add([call], now), now, out)
        self._send(self.placement.room_changed(load, now), now, out)

    def _abandon(self, request_id: str, tokens: int, now: float, out: list[Command]) -> None:
        call = self.calls.get(request_id)
        if call is None:
            return
        if call.state is CallState.RUNNING:
            call.tokens_seen = tokens
            out.append(Stop(call.request.id, self._load_of(call).id))
            self._end_run(call, Outcome.ABANDONED, None, now, out)
        else:
            self._end_wait(call, Outcome.ABANDONED, None, now, out)

    def _learn(self, call: Call, now: float, finished: Finished | None) -> None:
        """Let the backend's profile learn from a call that leaves it; a second time is nothing."""
        load = self._load_of(call)
        if load.learn(call, now, finished):
            self.fleet.recalibrated(load)

    # Endings

    def _reject(self, call: Call, reason: RejectReason, now: float, out: list[Command]) -> None:
        retry_after_s = self._retry_after_s(reason, now)
        out.append(Reject(call.request.id, reason, retry_after_s))
        out.append(_settlement(call, Outcome.REJECTED, reason, None, now))

    def _turn_away(self, call: Call, was_held: bool, now: float, out: list[Command]) -> None:
        """Refuse a call that was taken in, perhaps held, but is in no queue yet."""
        reason = RejectReason.DEADLINE_UNREACHABLE
        self._unwait(call)
        call.state = CallState.ENDED
        self._forget(call, now, answered=False)
        if was_held:
            out.append(Evict(call.request.id, reason))
            out.append(_settlement(call, Outcome.EVICTED, reason, None, now))
        else:
            self._reject(call, reason, now, out)
        self._after_workflow_call(call, now, out)

    def _end_wait(
        self,
        call: Call,
        outcome: Outcome,
        reason: RejectReason | None,
        now: float,
        out: list[Command],
    ) -> None:
        """Close the books of a call that is held or queued."""
        if call.state is CallState.QUEUED:
            self.placement.remove(call)
        self._unwait(call)
        call.state = CallState.ENDED
        self._forget(call, now, answered=False)
        if reason is not None:
            out.append(Evict(call.request.id, reason, self._retry_after_s(reason, now)))
        out.append(_settlement(call, outcome, reason, None, now))
        self._after_workflow_call(call, now, out)

    def _end_run(
        self,
        call: Call,
        outcome: Outcome,
        reason: RejectReason | FailureKind | None,
        now: float,
        out: list[Command],
    ) -> None:
        """Close the books of a running call, then fill the room it leaves."""
        load = self._load_of(call)
        self._learn(call, now, None)
        load.stop(call)
        self.health.left(load, call, now)
        call.state = CallState.ENDED
        self.placement.settle(call, load)
        self._forget(call, now, answered=outcome is Outcome.COMPLETED)
        out.append(_settlement(call, outcome, reason, load.id, now))
        self._after_workflow_call(call, now, out)
        self._send(self.placement.room_changed(load, now), now, out)

    def _forget(self, call: Call, now: float, *, answered: bool) -> None:
        self.calls.pop(call.request.id, None)
        if call.run is not None:
            own_s = _reference_s(call, call.tokens_seen)
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

    # Workflows

    def _after_workflow_call(self, call: Call, now: float, out: list[Command]) -> None:
        run = call.run
        if run is None or self.workflows.get(run.key) is not run:
            return
        self._release_held(run, now, out)
        if self.workflows.get(run.key) is run and self.workflows.is_over(run):
            self._close(run, WorkflowEvent.CLOSED, now, out)

    def _release_held(self, run: WorkflowRun, now: float, out: list[Command]) -> None:
        for held in self.workflows.unblocked(run):
            if held.state is CallState.HELD:  # to refuse one may release the next
                self._make_ready(held, now, out)

    def _complete(self, run: WorkflowRun | None, now: float, out: list[Command]) -> None:
        if run is None:
            return
        run.closing = True
        if self.workflows.is_over(run):
            self._close(run, WorkflowEvent.CLOSED, now, out)

    def _cancel(self, run: WorkflowRun | None, now: float, out: list[Command]) -> None:
        if run is None:
            return
        calls = list(run.calls.values())
        self._close(run, WorkflowEvent.CANCELLED, now, out)
        # What waits goes first, so that no room made by a stop is filled by a sibling.
        for call in sorted(calls, key=lambda call: call.state is CallState.RUNNING):
            if call.state is CallState.RUNNING:
                backend_id = self._load_of(call).id
                out.append(Stop(call.request.id, backend_id, RejectReason.WORKFLOW_CANCELLED))
                self._end_run(call, Outcome.CANCELLED, RejectReason.WORKFLOW_CANCELLED, now, out)
            else:
                self._end_wait(call, Outcome.CANCELLED, RejectReason.WORKFLOW_CANCELLED, now, out)

    def _close(
        self, run: WorkflowRun, event: WorkflowEvent, now: float, out: list[Command]
    ) -> None:
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

    # Backends and policy

    def _change_backend(
        self, backend: Backend, state: BackendState, now: float, out: list[Command]
    ) -> None:
        before = self.fleet.loads.get(backend.id)
        was_down = before is None or before.state is BackendState.DOWN
        load = self.fleet.change(backend, state)
        # At start everybody comes up, and nobody has calls that could come in a herd.
        if was_down and state is BackendState.UP and self._sequence:
            self.health.came_up(load, now)
        self._send(self.placement.add(self.placement.displaced(load), now), now, out)
        self._send(self.placement.room_changed(load, now), now, out)

    def _remove_backend(self, backend_id: BackendId, now: float, out: list[Command]) -> None:
        load = self.fleet.remove(backend_id)
        if load is not None:
            self._send(self.placement.add(self.placement.displaced(load), now), now, out)

    def _trust(self, backend_id: BackendId, now: float, out: list[Command]) -> None:
        load = self.fleet.loads.get(backend_id)
        if load is not None:
            self.health.reset(load)
            self._send(self.placement.room_changed(load, now), now, out)

    def _change_policy(self, policy: Policy, now: float, out: list[Command]) -> None:
        waiting = self.placement.clear()
        self.placement.policy = policy
        self._send(self.placement.add(waiting, now), now, out)

    def _reconfigure(self, event: Reconfigured, now: float, out: list[Command]) -> None:
        if event.weights is not None:
            self._shares.change(event.weights)
        if event.health is not None:
            self.health.change(event.health)
            self._look_at_health(now, out)  # what was to come later may be due by these
        if event.retries is not None:
            self.retries.rules = event.retries
        if event.workflows is not None:
            self.workflows.specs = dict(event.workflows)
            self.workflows.default_deadline_s = event.default_deadline_s
        if event.limits is not None:
            self._limit(event.limits, now, out)

    def _limit(self, limits: QueueLimits, now: float, out: list[Command]) -> None:
        self.admission.limits = limits
        self._look_at_the_clock(now, out)
        # Who has waited least loses least.
        for call in self._waits.latest_first():
            if not self.admission.total.exceeds(limits, 1.0, 0, further=0):
                break
            if call.state in WAITING:  # it may have gone with another one
                self._end_wait(call, Outcome.EVICTED, RejectReason.QUEUE_FULL, now, out)

    # Time

    def _let_time_pass(self, now: float, out: list[Command]) -> None:
        if self.wake_at is not None and self.wake_at <= now:
            self._look_at_the_clock(now, out)
        self._look_at_health(now, out)

    def _look_at_the_clock(self, now: float, out: list[Command]) -> None:
        for call in self._waits.due(self.admission.limits.timeout_s, now):
            self._end_wait(call, Outcome.EVICTED, RejectReason.QUEUE_TIMEOUT, now, out)
        for run in self.workflows.idle(now):
            self._close(run, WorkflowEvent.WENT_IDLE, now, out)

    def _look_at_health(self, now: float, out: list[Command]) -> None:
        for load in self.health.look(now):
            if load.breaker.is_open:
                self._send(self.placement.add(self.placement.displaced(load), now), now, out)
            # Whoever was held back for one that is kept out now may go elsewhere.
            self._send(self.placement.room_changed(load, now), now, out)
        for load in self.health.stuck():
            out += self._recalls(load)
        for call in self.retries.due(now):
            call.state = CallState.QUEUED
            self._send(self.placement.add([call], now), now, out)

    def _recalls(self, load: BackendLoad) -> list[Command]:
        """Ask back the calls of a backend that hangs, where another one could have them."""
        recalls: list[Command] = []
        for call in load.running.values():
            if call.first_token_at is not None or call.is_recalled:
                continue
            elsewhere = [
                other
                for other in self.fleet.open_for(call)
                if other is not load and other.id not in call.tried
            ]
            if elsewhere and self.retries.may(call):
                call.is_recalled = True
                recalls.append(Recall(call.request.id, load.id))
        return recalls

    def _set_alarm(self) -> None:
        wake_at = self.workflows.next_idle_at()
        queue_at = self._waits.next_at(self.admission.limits.timeout_s)
        waits = queue_at is not None
        retry_at = self.retries.next_at() if waits else None
        for at in (queue_at, retry_at, self.health.next_at(waits=waits)):
            if at is not None and (wake_at is None or at < wake_at):
                wake_at = at
        self.wake_at = wake_at

    # Books

    def _wait(self, call: Call, now: float) -> None:
        request = call.request
        self.admission.entered(request.tenant, request.body_bytes, call.reference_s)
        self._waits.add(call, now)

    def _unwait(self, call: Call) -> None:
        request = call.request
        self.admission.left(request.tenant, request.body_bytes, call.reference_s)

    def _load_of(self, call: Call) -> BackendLoad:
        load = call.load
        assert load is not None, f"running call {call.request.id} has no backend"
        return load


def _reference_s(call: Call, output_tokens: int) -> float:
    return call.reference_prefill_s + max(output_tokens - 1, 0) * call.reference_step_s


def _settlement(
    call: Call,
    outcome: Outcome,
    reason: RejectReason | FailureKind | None,
    backend_id: BackendId | None,
    now: float,
) -> Settle:
    request = call.request
    return Settle(
        request_id=request.id,
        outcome=outcome,
        reason=reason,
        tenant=request.tenant,
        model=request.model,
        workflow=request.workflow.key if request.workflow else None,
        workflow_name=request.workflow.name if request.workflow else None,
        stage=request.workflow.stage if request.workflow else None,
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
        deadline_at=call.deadline_at,
    )
