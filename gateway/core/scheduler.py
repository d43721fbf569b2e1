"""Scheduler: one event in, all commands out. The live gateway and the simulator run this object."""

from collections.abc import Iterable
from typing import assert_never

from gateway.core.admission import UNBOUNDED, Admission, QueueLimits
from gateway.core.breaker import HealthRules
from gateway.core.call import Call, CallState
from gateway.core.changes import Changes
from gateway.core.commands import Command, Reject, Stop
from gateway.core.events import (
    Abandoned,
    Arrived,
    BackendChanged,
    BackendRemoved,
    BackendTrusted,
    EngineLooked,
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
from gateway.core.ledger import Ledger
from gateway.core.load import BackendLoad, load_of
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.placement import Placement
from gateway.core.policies.base import Policy
from gateway.core.queues import FairShares
from gateway.core.retries import Retries, RetryRules
from gateway.core.stages import WorkflowEvent
from gateway.core.types import Backend, InferenceRequest
from gateway.core.workflow import WorkflowRun, Workflows

# A name of its own: to read an enum's member costs ten times as much as a global.
_RUNNING = CallState.RUNNING


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
        shares = shares or FairShares()
        self.fleet = Fleet(backends, shares)
        self.placement = Placement(self.fleet, policy, shares)
        self.placement.max_bound = limits.max_backend_requests
        self.admission = Admission(limits)
        self.health = Health(self.fleet, health or HealthRules())
        self.retries = Retries(retries or RetryRules())
        self.workflows = Workflows() if workflows is None else workflows
        self._ledger = Ledger(
            self.fleet,
            self.placement,
            self.admission,
            self.health,
            self.retries,
            self.workflows,
            learns_profiles=learns_profiles,
        )
        self._changes = Changes(self._ledger, shares)
        self.calls = self._ledger.calls
        """Every call that is not settled, by request id."""
        self.wake_at: float | None = None
        """When `TimePassed` should be fed at the latest; None: no need."""
        self._shutting_down = False

    def handle(  # noqa: C901, PLR0912 - one case an event
        self, event: Event, now: float
    ) -> list[Command]:
        """Take in one fact that became true at `now`; return what to do about it, in order."""
        out: list[Command] = []
        self._ledger.assume_first_tokens(now)
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
                self._changes.change_backend(backend, state, now, out)
            case BackendRemoved(backend_id):
                self._changes.remove_backend(backend_id, now, out)
            case BackendTrusted(backend_id):
                self._changes.trust(backend_id, now, out)
            case Heard(backend_id):
                self._hear(self.fleet.loads.get(backend_id), now, out)
            case EngineLooked(backend_id, waiting):
                self._changes.look_at_engine(backend_id, waiting, now, out)
            case PolicyChanged(policy):
                self._changes.change_policy(policy, now, out)
            case Reconfigured():
                self._changes.reconfigure(event, now, out)
            case WorkflowDeclared(key, spec, deadline_s, strict):
                run = self.workflows.declare(key, spec, deadline_s, strict, now)
                self._ledger.release_held(run, now, out)
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
        self._ledger.send(self.placement.fill_gaps(now), now, out)
        if self.workflows.count > self.workflows.max_open:
            for surplus in self.workflows.surplus():
                self._ledger.close(surplus, WorkflowEvent.WENT_IDLE, now, out)
        self._set_alarm()
        return out

    @property
    def waiting(self) -> int:
        """Calls held or queued."""
        return self.admission.total.requests

    @property
    def running(self) -> int:
        """Calls in engines, those of removed backends included."""
        return self._ledger.running

    # Arrival

    def _arrive(self, request: InferenceRequest, now: float, out: list[Command]) -> None:
        if request.id in self.calls:
            # Not settled: the id's books belong to the call that has it.
            out.append(Reject(request.id, RejectReason.DUPLICATE_ID))
            return
        call = self._ledger.call_for(request, now)
        ref = request.workflow
        if ref is not None:
            call.run = self.workflows.get(ref.key)
        reason = self._refusal(call)
        full = self._full(request) if reason is None else None
        if full is not None and not self.placement.may_start(call):
            reason = full
        is_held = False
        if reason is None and ref is not None:
            call.run = self.workflows.open(ref, call.arrived_at)
            is_held = self.workflows.blocks(call.run, ref.stage)
            if is_held:
                reason = RejectReason.STAGE_NOT_READY if call.run.strict else full
        if reason is not None:
            self._ledger.reject(call, reason, now, out)
            return
        self._ledger.take_in(call, now)
        if is_held:
            call.state = CallState.HELD
            return
        self._ledger.make_ready(call, now, out)
        if full is not None and call.state is CallState.QUEUED:
            self.placement.remove(call)  # there is room, but others come first
            self._ledger.turn_away(call, full, False, now, out)

    def _refusal(self, call: Call) -> RejectReason | None:
        request = call.request
        if self._shutting_down:
            return RejectReason.SHUTTING_DOWN
        if request.workflow is not None and self.workflows.was_cancelled(request.workflow.key):
            return RejectReason.WORKFLOW_CLOSED
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
        return None

    def _full(self, request: InferenceRequest) -> RejectReason | None:
        """Return why the call may not wait, if it may not: it starts at once or not at all."""
        if self.placement.is_full(self.fleet.pool(request)):
            return RejectReason.QUEUE_FULL
        return self.admission.refusal(request.tenant, request.model, request.body_bytes)

    # Running

    def _first_token(self, request_id: str, now: float, out: list[Command]) -> None:
        call = self.calls.get(request_id)
        if call is None or call.state is not _RUNNING or call.first_token_at is not None:
            return
        call.first_token_at = now
        load = load_of(call)
        self.health.heard(load, now)
        load.calibration.first_token(call, now)
        load.prefill_done(call)
        self._ledger.room_changed(load, now, out)

    def _hear(self, load: BackendLoad | None, now: float, out: list[Command]) -> None:
        if load is not None and self.health.heard(load, now):
            self._ledger.room_changed(load, now, out)

    def _progress(
        self, request_id: str, output_tokens: int, now: float, out: list[Command]
    ) -> None:
        call = self.calls.get(request_id)
        if call is None or call.state is not _RUNNING:
            return
        call.tokens_seen = output_tokens
        remaining = max(round(call.request.output.remaining_mean(output_tokens)), 1)
        load = load_of(call)
        load.progress(call, remaining, output_tokens)
        self._hear(load, now, out)

    def _finish(self, event: Finished, now: float, out: list[Command]) -> None:
        call = self.calls.get(event.request_id)
        if call is None or call.state is not _RUNNING:
            return
        call.tokens_seen = event.output_tokens
        call.prompt_tokens_told = event.prompt_tokens
        load = load_of(call)
        self.health.succeeded(load, call, now)
        load.budget.answered()
        self._ledger.learn(call, now, event)
        self._ledger.end_run(call, Outcome.COMPLETED, None, now, out)

    def _fail(self, event: Failed, now: float, out: list[Command]) -> None:
        call = self.calls.get(event.request_id)
        if call is None or call.state is not _RUNNING:
            return
        call.tokens_seen = event.output_tokens
        load = load_of(call)
        self.health.failed(load, call, event.kind, now)
        if event.kind is FailureKind.OVERLOADED:
            load.budget.refused()
        invalid = event.kind is FailureKind.INVALID_REQUEST
        # With no backend up it could only wait for its timeout; a new call would be refused too.
        may_retry = event.retryable and not invalid and bool(self.fleet.open_for(call))
        if may_retry and (call.is_recalled or self.retries.may(call)):
            self._retry(call, now, out)
        else:
            invalid = invalid or event.kind is FailureKind.UNSUPPORTED
            outcome = Outcome.INVALID if invalid else Outcome.FAILED
            self._ledger.end_run(call, outcome, event.kind, now, out)
        if load.breaker.is_open:
            self._ledger.displace(load, now, out)

    def _retry(self, call: Call, now: float, out: list[Command]) -> None:
        """Queue a call that a backend failed again, in its old place."""
        load = load_of(call)
        call.tried.add(load.id)
        call.is_recalled = False
        self._ledger.learn(call, now, None)
        load.stop(call)
        self.health.left(load, call, now)
        self.placement.settle(call, load)
        call.started_at = call.first_token_at = None
        call.tokens_seen = 0
        self._ledger.wait(call, now)
        if all(other.id in call.tried for other in self.fleet.open_for(call)):
            self.retries.pause(call, now)
        else:
            call.state = CallState.QUEUED
            self._ledger.send(self.placement.add([call], now), now, out)
        self._ledger.room_changed(load, now, out)

    def _abandon(self, request_id: str, tokens: int, now: float, out: list[Command]) -> None:
        call = self.calls.get(request_id)
        if call is None:
            return
        if call.state is _RUNNING:
            call.tokens_seen = tokens
            out.append(Stop(call.request.id, load_of(call).id))
            self._ledger.end_run(call, Outcome.ABANDONED, None, now, out)
        else:
            self._ledger.end_wait(call, Outcome.ABANDONED, None, now, out)

    # Workflows

    def _complete(self, run: WorkflowRun | None, now: float, out: list[Command]) -> None:
        if run is None:
            return
        run.closing = True
        if self.workflows.is_over(run):
            self._ledger.close(run, WorkflowEvent.CLOSED, now, out)

    def _cancel(self, run: WorkflowRun | None, now: float, out: list[Command]) -> None:
        if run is None:
            return
        calls = list(run.calls.values())
        self._ledger.close(run, WorkflowEvent.CANCELLED, now, out)
        # What waits goes first, so that no room made by a stop is filled by a sibling.
        for call in sorted(calls, key=lambda call: call.state is _RUNNING):
            if call.state is _RUNNING:
                backend_id = load_of(call).id
                out.append(Stop(call.request.id, backend_id, RejectReason.WORKFLOW_CANCELLED))
                self._ledger.end_run(
                    call, Outcome.CANCELLED, RejectReason.WORKFLOW_CANCELLED, now, out
                )
            else:
                self._ledger.end_wait(
                    call, Outcome.CANCELLED, RejectReason.WORKFLOW_CANCELLED, now, out
                )

    # Time

    def _let_time_pass(self, now: float, out: list[Command]) -> None:
        if self.wake_at is not None and self.wake_at <= now:
            self._changes.look_at_the_clock(now, out)
        self._changes.look_at_health(now, out)

    def _set_alarm(self) -> None:
        wake_at = self.workflows.next_idle_at()
        queue_at = self._ledger.waits.next_at(self.admission.limits.timeout_s)
        waits = queue_at is not None
        retry_at = self.retries.next_at() if waits else None
        for at in (queue_at, retry_at, self.health.next_at(waits=waits)):
            if at is not None and (wake_at is None or at < wake_at):
                wake_at = at
        self.wake_at = wake_at
