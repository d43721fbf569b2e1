"""Referee: stands between a test and a scheduler, and knows what must hold after every event."""

from collections import Counter

from gateway.core.call import Call, CallState
from gateway.core.commands import Command, Evict, Recall, Reject, Settle, Start, Stop, WorkflowEnded
from gateway.core.events import Arrived, Event, Failed, TimePassed, WorkflowDeclared
from gateway.core.load import BackendLoad
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.policies.base import Binding
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, BackendState, InferenceRequest, WorkflowKey

ROUNDING_S = 1e-6


class Referee:
    """Feeds events, follows the commands with a model of its own, and checks the books."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrivals: Counter[str] = Counter()
        """How often each id arrived with no call of that id about."""
        self.settled: list[Settle] = []
        self.running: dict[str, BackendId] = {}
        self.workflows_opened = 0
        self.workflows_ended: list[WorkflowEnded] = []
        self._live: dict[str, InferenceRequest] = {}
        self._duplicate: InferenceRequest | None = None
        """The request that has just arrived with an id in use."""
        self._open_workflows: set[WorkflowKey] = set()

    def feed(self, event: Event, now: float) -> list[Command]:
        """Let the scheduler handle an event; AssertionError when it breaks a rule."""
        if isinstance(event, Arrived):
            self._note_arrival(event.request)
        if isinstance(event, Failed):
            self._note_failure(event)
        commands = self.scheduler.handle(event, now)
        self._follow(commands, now)
        assert self._duplicate is None, f"{event} was not answered"
        self._follow_workflows(event, commands)
        self.check(now)
        if isinstance(event, TimePassed) and self.scheduler.wake_at is not None:
            assert self.scheduler.wake_at > now, "the alarm would ring for ever"
        return commands

    def check_idle(self) -> None:
        """Check that every book is closed and every sum is exactly 0."""
        scheduler = self.scheduler
        assert not self._live, f"never settled: {sorted(self._live)}"
        assert Counter(s.request_id for s in self.settled) == self.arrivals
        assert not self.running
        assert not scheduler.calls
        assert scheduler.waiting == scheduler.running == 0
        total = scheduler.admission.total
        assert (total.requests, total.body_bytes, total.predicted_s) == (0, 0, 0.0)
        assert not scheduler.admission.tenants
        assert scheduler.workflows.count == 0
        assert len(self.workflows_ended) == self.workflows_opened
        assert not any(scheduler.placement.queues.values())
        for load in scheduler.fleet.loads.values():
            assert load.pending == load.in_flight == 0
            assert load.pending_prefill_tokens == load.context_tokens == 0
            assert load.reserved_tokens == load.prefix.referenced_tokens == 0
            assert load.backlog_s == 0.0

    # Commands

    def _note_arrival(self, request: InferenceRequest) -> None:
        if request.id in self._live:
            self._duplicate = request
        else:
            self.arrivals[request.id] += 1
            self._live[request.id] = request

    def _note_failure(self, event: Failed) -> None:
        """A call that failed runs no longer; whether it is over is the scheduler's to say."""
        self.running.pop(event.request_id, None)

    def _follow(self, commands: list[Command], now: float) -> None:
        refused: str | None = None
        for command in commands:
            if refused is not None:
                assert isinstance(command, Settle), f"{command} between a refusal and its Settle"
                assert command.request_id == refused
            refused = None
            match command:
                case Start():
                    self._follow_start(command)
                case Stop(request_id, backend_id):
                    assert self.running.pop(request_id) == backend_id
                case Settle():
                    self._follow_settle(command, now)
                case Reject(request_id, RejectReason.DUPLICATE_ID):
                    assert self._duplicate is not None
                    assert request_id == self._duplicate.id
                    self._duplicate = None
                case Reject(request_id) | Evict(request_id):
                    assert request_id in self._live
                    assert command.retry_after_s is None or command.retry_after_s >= 0
                    refused = request_id
                case Recall(request_id, backend_id):
                    assert self.running[request_id] == backend_id
                case WorkflowEnded():
                    self.workflows_ended.append(command)
                    assert command.opened_at <= command.ended_at <= now
        assert refused is None, f"{refused} was refused and not settled"
        self._check_starts({c.backend_id for c in commands if isinstance(c, Start)})

    def _follow_start(self, start: Start) -> None:
        request = self._live.get(start.request_id)
        assert request is not None, f"{start.request_id} was started before or after its time"
        assert start.request_id not in self.running, f"{start.request_id} runs already"
        load = self.scheduler.fleet.loads.get(start.backend_id)
        assert load is not None, f"{start.backend_id} is not there"
        assert load.state is BackendState.UP
        assert request.model in load.backend.models
        assert request.eligible is None or load.id in request.eligible
        assert request.prompt_tokens < load.backend.profile.kv_tokens
        assert start.decision.request_id == start.request_id
        assert start.decision.backend_id == start.backend_id
        assert -(2**53) < start.engine_priority < 2**53
        self.running[start.request_id] = start.backend_id

    def _follow_settle(self, settled: Settle, now: float) -> None:
        request = self._live.pop(settled.request_id, None)
        assert request is not None, f"{settled.request_id} was settled and is not open"
        assert settled.ended_at == now
        assert settled.arrived_at <= now
        ran = self.running.pop(settled.request_id, None)
        if settled.outcome is Outcome.COMPLETED:
            assert ran == settled.backend_id
        if settled.outcome in {Outcome.REJECTED, Outcome.EVICTED}:
            assert ran is None
            assert settled.backend_id is None
            assert isinstance(settled.reason, RejectReason)
        if settled.outcome is Outcome.REJECTED:
            assert settled.attempts == 0
        self.settled.append(settled)
        if self._duplicate is not None and self._duplicate.id == settled.request_id:
            # It was overdue: the id is free for the one that arrives.
            request, self._duplicate = self._duplicate, None
            self._note_arrival(request)

    def _check_starts(self, backend_ids: set[BackendId]) -> None:
        """Check the caps of backends that have just been given calls."""
        policy = self.scheduler.placement.policy
        for backend_id in backend_ids:
            load = self.scheduler.fleet.loads[backend_id]
            cap = load.backend.max_in_flight
            assert cap is None or load.in_flight <= cap
            if policy.binds is Binding.LATE:
                assert policy.budget_share is not None
                budget = policy.budget_share * load.backend.profile.kv_tokens
                assert load.in_flight == 1 or load.reserved_tokens <= budget
                assert load.in_flight <= load.backend.profile.max_num_seqs

    def _follow_workflows(self, event: Event, commands: list[Command]) -> None:
        open_before = set(self._open_workflows)
        named: set[WorkflowKey] = set()
        if isinstance(event, Arrived) and event.request.workflow is not None:
            named.add(event.request.workflow.key)
        elif isinstance(event, WorkflowDeclared):
            named.add(event.key)
        ended = [c.key for c in commands if isinstance(c, WorkflowEnded)]
        open_now = {run.key for run in self.scheduler.workflows}
        assert set(ended) <= open_before | named, "a workflow ended that was not open"
        assert open_now <= open_before | named, "a workflow opened by itself"
        assert open_before - set(ended) <= open_now, "a workflow vanished"
        # One that expires and is named by the same event is opened anew.
        opened = len(open_now) + len(ended) - len(open_before)
        assert 0 <= opened <= len(named)
        self.workflows_opened += opened
        self._open_workflows = open_now

    # Books

    def check(self, now: float) -> None:
        """Check every sum against what it is the sum of."""
        scheduler = self.scheduler
        assert set(scheduler.calls) == set(self._live)
        states = dict.fromkeys(CallState, 0)
        for call in scheduler.calls.values():
            states[call.state] += 1
            assert (call.state is CallState.RUNNING) == (call.request.id in self.running)
        waiting = states[CallState.HELD] + states[CallState.QUEUED] + states[CallState.PAUSED]
        assert scheduler.waiting == waiting
        assert scheduler.running == states[CallState.RUNNING]
        self._check_admission()
        queued = [c for c in scheduler.calls.values() if c.state is CallState.QUEUED]
        queues = [*scheduler.placement.queues.values()]
        queues += [load.bound for load in scheduler.fleet.loads.values()]
        waiting_ids = sorted(call.request.id for queue in queues for call in queue)
        assert waiting_ids == sorted(call.request.id for call in queued)
        for load in scheduler.fleet.loads.values():
            self._check_load(load)
        for call in queued:
            self._check_nothing_idles(call)
        self._check_alarm(now)

    def _check_admission(self) -> None:
        admission = self.scheduler.admission
        waiting = [c for c in self.scheduler.calls.values() if c.state is not CallState.RUNNING]
        assert admission.total.requests == len(waiting)
        assert admission.total.body_bytes == sum(call.request.body_bytes for call in waiting)
        predicted_s = sum(call.reference_s for call in waiting)
        assert abs(admission.total.predicted_s - predicted_s) < ROUNDING_S
        assert admission.total.predicted_s > -ROUNDING_S
        by_tenant = Counter(call.request.tenant for call in waiting)
        assert {t: w.requests for t, w in admission.tenants.items()} == by_tenant

    def _check_load(self, load: BackendLoad) -> None:
        running = list(load.running.values())
        bound = list(load.bound)
        assert {call.request.id for call in running} <= {
            i for i, backend_id in self.running.items() if backend_id == load.id
        }
        assert load.pending_prefill_tokens == sum(call.fresh_tokens for call in running) >= 0
        assert load.context_tokens == sum(call.context_tokens for call in running) >= 0
        segments: dict[int, int] = {}
        for call in running:
            assert call.context_tokens >= call.request.prompt_tokens
            for key, tokens in call.request.prefix:
                segments.setdefault(key, tokens)
        assert load.prefix.referenced_tokens >= 0
        assert (load.prefix.referenced_tokens == 0) == (not segments)
        own = sum(call.own_tokens for call in running)
        assert load.reserved_tokens == own + load.prefix.referenced_tokens >= 0
        backlog_s = sum(call.backlog_s for call in running + bound)
        assert abs(load.backlog_s - backlog_s) < ROUNDING_S
        assert load.backlog_s > -ROUNDING_S
        if not running and not bound:
            assert load.backlog_s == 0.0
        if bound:
            assert load.state is BackendState.UP
            assert all(call.request.model in load.backend.models for call in bound)

    def _check_nothing_idles(self, call: Call) -> None:
        """A call does not wait while every backend it could go to has nothing to do."""
        loads = self.scheduler.fleet.open_for(call) if call.load is None else [call.load]
        assert not loads or any(load.running for load in loads), f"{call.request.id} waits"

    def _check_alarm(self, now: float) -> None:
        scheduler = self.scheduler
        timeout_s = scheduler.admission.limits.timeout_s
        due = [
            call.waits_since + (call.request.queue_timeout_s or timeout_s)
            for call in scheduler.calls.values()
            if call.state is not CallState.RUNNING
        ]
        due += [
            run.last_active_at + scheduler.workflows.idle_timeout_s
            for run in scheduler.workflows
            if not run.calls
        ]
        if due:
            assert scheduler.wake_at is not None
            assert scheduler.wake_at <= min(due)
        if scheduler.wake_at is not None:
            assert scheduler.wake_at >= now
