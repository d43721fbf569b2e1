"""Workflows: which stages are open, what deadline and budget each call inherits."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from gateway.core.call import Call
from gateway.core.specs import UNNAMED_STAGE, WorkflowSpec
from gateway.core.stages import StageEvent, StageState, WorkflowEvent, WorkflowState, advance, end
from gateway.core.templates import LearnedTemplates
from gateway.core.types import WorkflowKey, WorkflowRef

MAX_WORKFLOWS = 100_000
MAX_CANCELLED = 10_000
"""Ids of cancelled workflows that are remembered, so that their clients' next calls are refused."""
MAX_STAGES_A_RUN = 256
MAX_VISITS_A_RUN = 512

# Names of their own: to read an enum's member costs ten times as much as a global.
_OPEN = WorkflowState.OPEN
_BLOCKED = StageState.BLOCKED
_READY = StageState.READY
_ANSWERED = StageState.ANSWERED
_CALLED = StageEvent.CALLED
_ANSWER = StageEvent.ANSWERED
_BROKE = StageEvent.BROKE


@dataclass(slots=True)
class StageRun:
    """One stage of one running workflow."""

    state: StageState
    open_calls: int = 0
    answers: int = 0
    visits: int = 0


@dataclass(slots=True)
class StageVisit:
    """Calls of one stage that overlap in time: one step of the run's path."""

    stage: str
    repeat: int
    """How many visits of the same stage came before."""
    open_calls: int = 0
    own_s: float = 0.0
    """The longest of its calls, on the average backend, unloaded."""


@dataclass(slots=True, eq=False)
class WorkflowRun:
    """One workflow as it runs. Owned by the scheduler."""

    key: WorkflowKey
    name: str | None
    spec: WorkflowSpec | None
    opened_at: float
    deadline_at: float | None
    strict: bool = False
    state: WorkflowState = WorkflowState.OPEN
    stages: dict[str, StageRun] = field(default_factory=dict)
    path: list[StageVisit] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    """Held, queued and running calls by request id."""
    total_calls: int = 0
    last_active_at: float = 0.0
    last_failed: bool = False
    closing: bool = False
    """The final call is under way, or the client said that no other will come."""

    @property
    def template_name(self) -> str:
        """The name under which its course is learned."""
        return self.name or ""


class Workflows:
    """The open workflows, bounded; finished ones leave what they taught.

    It changes states and does sums; what to do about calls is the scheduler's business.
    """

    def __init__(
        self,
        specs: Mapping[str, WorkflowSpec] | None = None,
        *,
        idle_timeout_s: float = 300.0,
        default_deadline_s: float | None = None,
        max_open: int = MAX_WORKFLOWS,
    ) -> None:
        self.max_open = max_open
        self.specs = dict(specs or {})
        self.templates = LearnedTemplates()
        self.idle_timeout_s = idle_timeout_s
        self.default_deadline_s = default_deadline_s
        self._runs: dict[WorkflowKey, WorkflowRun] = {}
        self._idle: OrderedDict[WorkflowKey, WorkflowRun] = OrderedDict()
        """Runs without calls, the one that has been quiet longest first."""
        self._cancelled: OrderedDict[WorkflowKey, None] = OrderedDict()

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._runs)

    def __iter__(self) -> Iterator[WorkflowRun]:
        return iter(self._runs.values())

    def get(self, key: WorkflowKey) -> WorkflowRun | None:
        """Return the open workflow of that key."""
        return self._runs.get(key)

    def was_cancelled(self, key: WorkflowKey) -> bool:
        """Return whether the workflow of that key was cancelled, and not declared again since."""
        return key in self._cancelled

    def open(self, ref: WorkflowRef, first_at: float) -> WorkflowRun:
        """Return the run a call belongs to, opened or updated by what the call says of it."""
        run = self._runs.get(ref.key)
        if run is None:
            default_s = None if ref.is_session else self.default_deadline_s
            run = self._create(ref.key, ref.name, first_at, default_s)
        elif run.name is None and ref.name is not None:
            run.name = ref.name
        if ref.deadline_s is not None:
            run.deadline_at = run.opened_at + ref.deadline_s
        return run

    def declare(
        self,
        key: WorkflowKey,
        spec: WorkflowSpec,
        deadline_s: float | None,
        strict: bool,
        now: float,
    ) -> WorkflowRun:
        """Open a workflow by its declaration. One that is open already takes the new spec."""
        self._cancelled.pop(key, None)
        run = self._runs.get(key) or self._create(key, spec.name, now, self.default_deadline_s)
        run.name = spec.name
        run.spec = spec
        run.strict = strict
        chosen_s = deadline_s if deadline_s is not None else spec.deadline_s
        if chosen_s is not None:
            run.deadline_at = run.opened_at + chosen_s
        for stage in spec.stages:
            self._stage(run, stage.name)
        return run

    def blocks(self, run: WorkflowRun, stage: str | None) -> bool:
        """Return whether a call of that stage must wait for another stage."""
        known = run.stages.get(stage) if stage is not None else None
        return known is not None and known.state is _BLOCKED

    def join(self, run: WorkflowRun, call: Call, now: float) -> None:
        """A call belongs to this run until it leaves."""
        run.calls[call.request.id] = call
        run.total_calls += 1
        run.last_active_at = now
        self._idle.pop(run.key, None)

    def enter(self, run: WorkflowRun, call: Call, now: float) -> None:
        """A call of this run becomes ready: place it on the run's path, give it its budget."""
        name = self._stage_name(call)
        stage = self._stage(run, name)
        stage.state = advance(stage.state, _CALLED)
        visit = run.path[-1] if run.path else None
        if visit is None or visit.stage != name or visit.open_calls == 0:
            visit = StageVisit(stage=name, repeat=stage.visits)
            stage.visits += 1
            if len(run.path) < MAX_VISITS_A_RUN:
                run.path.append(visit)
        stage.open_calls += 1
        visit.open_calls += 1
        call.visit = visit
        call.deadline_at = run.deadline_at
        rest_s = self._rest_s(run, visit)
        call.budget_s = stage_budget_s(run.deadline_at, call.ready_at, call.reference_s, rest_s)
        call.remaining_s = call.reference_s + (rest_s or 0.0)
        call.total_s = self.expected_total_s(run) or call.reference_s
        run.last_active_at = now

    def leave(self, run: WorkflowRun, call: Call, now: float, answered: bool, own_s: float) -> None:
        """A call of this run is over; `own_s` is what it took, on the average backend."""
        run.calls.pop(call.request.id, None)
        if run.state is not _OPEN:
            return
        run.last_failed = not answered
        if call.visit is not None:
            stage = run.stages[call.visit.stage]
            stage.open_calls -= 1
            call.visit.open_calls -= 1
            if answered:
                stage.answers += 1
                call.visit.own_s = max(call.visit.own_s, own_s)
            if stage.open_calls == 0:
                event = _ANSWER if stage.answers else _BROKE
                stage.state = advance(stage.state, event)
        ref = call.request.workflow
        if ref is not None and ref.final:
            run.closing = True
        run.last_active_at = now
        if not run.calls:
            self._idle[run.key] = run

    def unblocked(self, run: WorkflowRun) -> list[Call]:
        """Return held calls whose stage may now run, after opening those stages."""
        if run.spec is None:
            return []
        for name, stage in run.stages.items():
            if stage.state is not _BLOCKED:
                continue
            spec = run.spec.stage(name)  # None: it was declared, and is no longer
            if spec is None or self._satisfied(run, spec.depends_on):
                stage.state = advance(stage.state, StageEvent.UNBLOCKED)
        return [
            call
            for call in run.calls.values()
            if call.visit is None and not self.blocks(run, self._stage_name(call))
        ]

    def is_over(self, run: WorkflowRun) -> bool:
        """Return whether nothing more is to come."""
        return run.closing and not run.calls

    def close(self, run: WorkflowRun, event: WorkflowEvent) -> None:
        """End the run; learn from it unless it was cancelled."""
        if event is WorkflowEvent.CLOSED and run.last_failed:
            event = WorkflowEvent.BROKE
        run.state = end(run.state, event)
        cancelled = event is WorkflowEvent.CANCELLED
        if cancelled:
            self._cancelled[run.key] = None
            if len(self._cancelled) > MAX_CANCELLED:
                self._cancelled.popitem(last=False)
        for stage in run.stages.values():
            stage_event = StageEvent.CANCELLED if cancelled else StageEvent.CLOSED
            stage.state = advance(stage.state, stage_event)
        del self._runs[run.key]
        self._idle.pop(run.key, None)
        if run.state in {WorkflowState.COMPLETED, WorkflowState.EXPIRED} and run.path:
            self.templates.learn(
                run.template_name, ((visit.stage, visit.own_s) for visit in run.path)
            )

    def idle(self, now: float) -> list[WorkflowRun]:
        """Return runs without calls that have been idle for too long."""
        over: list[WorkflowRun] = []
        for run in self._idle.values():
            if run.last_active_at + self.idle_timeout_s > now:
                break
            over.append(run)
        return over

    def surplus(self) -> list[WorkflowRun]:
        """Return as many runs as there are too many, longest idle first; none that has calls."""
        return list(islice(self._idle.values(), max(len(self._runs) - self.max_open, 0)))

    def next_idle_at(self) -> float | None:
        """Return when the run that has been quiet longest will have been idle for too long."""
        for run in self._idle.values():
            return run.last_active_at + self.idle_timeout_s
        return None

    def expected_total_s(self, run: WorkflowRun) -> float | None:
        """Return the predicted unloaded length of the whole workflow; None if never seen."""
        template = self.templates.get(run.template_name)
        return template.total_s.value if template else None

    def _create(
        self, key: WorkflowKey, name: str | None, now: float, default_deadline_s: float | None
    ) -> WorkflowRun:
        spec = self.specs.get(name) if name else None
        deadline_s = spec.deadline_s if spec else None
        if deadline_s is None:
            deadline_s = default_deadline_s
        run = WorkflowRun(
            key=key,
            name=name,
            spec=spec,
            opened_at=now,
            deadline_at=None if deadline_s is None else now + deadline_s,
            last_active_at=now,
        )
        self._runs[key] = self._idle[key] = run
        for stage in spec.stages if spec else ():
            self._stage(run, stage.name)
        return run

    def _rest_s(self, run: WorkflowRun, visit: StageVisit) -> float | None:
        template = self.templates.get(run.template_name)
        if template is None:
            return None
        spec = run.spec.stage(visit.stage) if run.spec else None
        limit = spec.max_repeats if spec else None
        is_last = limit is not None and visit.repeat + 1 >= limit
        return template.rest_s(visit.stage, visit.repeat, is_last=is_last)

    def _stage(self, run: WorkflowRun, name: str) -> StageRun:
        stage = run.stages.get(name)
        if stage is None:
            spec = run.spec.stage(name) if run.spec else None
            waits = spec is not None and not self._satisfied(run, spec.depends_on)
            stage = StageRun(_BLOCKED if waits else _READY)
            run.stages[name] = stage
        return stage

    @staticmethod
    def _satisfied(run: WorkflowRun, names: Iterable[str]) -> bool:
        for name in names:
            stage = run.stages.get(name)
            spec = run.spec.stage(name) if run.spec else None
            if stage is None or stage.state is not _ANSWERED:
                return False
            if spec is not None and stage.answers < spec.fan_out:
                return False
        return True

    @staticmethod
    def _stage_name(call: Call) -> str:
        ref = call.request.workflow
        stage = (ref.stage if ref else None) or UNNAMED_STAGE
        run = call.run
        if run is not None and stage not in run.stages and len(run.stages) >= MAX_STAGES_A_RUN:
            return UNNAMED_STAGE
        return stage


def stage_budget_s(
    deadline_at: float | None, now: float, own_s: float, rest_s: float | None
) -> float | None:
    """Return t_SLO of a stage: what is left of the deadline x its share of what is to come.

    HexGen-Flow (arXiv 2505.05286), section 4: t_SLO,j = (deadline - now) x t_j / sum of t_k
    over the remaining stages k >= j; here the sum is what finished runs had left at the same
    stage, so repeats and optional stages count as often as they really occur. `own_s` is the call's
    own predicted time, `rest_s` that of all that comes after it; None: nothing is known of that.
    """
    if deadline_at is None:
        return None
    left_s = max(deadline_at - now, 0.0)
    if rest_s is None or own_s + rest_s <= 0:
        return left_s
    return left_s * own_s / (own_s + rest_s)
