"""Random scripts of everything a scheduler can be told, and a referee that checks its books.

A script is a list of moves, each a name and three whole numbers; what the numbers mean depends on
what is there when the move is made ("the 7th running call finishes"), so that any list of moves
makes sense and hypothesis can shrink it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from gateway.core.admission import QueueLimits, Unreachable
from gateway.core.breaker import HealthRules
from gateway.core.commands import Command
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
from gateway.core.lengths import LengthDistribution
from gateway.core.outcomes import FailureKind
from gateway.core.policies import POLICIES, policy_from_name
from gateway.core.policies.base import Policy
from gateway.core.retries import RetryRules
from gateway.core.scheduler import Scheduler
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import (
    Backend,
    BackendId,
    BackendState,
    InferenceRequest,
    PromptSegment,
    RequestId,
    TenantId,
    WorkflowKey,
    WorkflowRef,
)
from gateway.core.workflow import Workflows
from tests.builders import a_backend, a_profile
from tests.core.referee import Referee

MIXED_POLICIES = (
    *POLICIES,
    "weighted_jsq+edf",
    "round_robin+llf",
    "p2c+urgency",
    "alpha_balanced+fcfs",
    "completion+gittins",
    "completion+srpt",
)

FLEET = (
    a_backend("a", profile=a_profile(kv_tokens=4_000), models=frozenset({"m1"})),
    a_backend(
        "b",
        profile=a_profile(slowness=3, kv_tokens=1_500),
        models=frozenset({"m1", "m2"}),
        max_in_flight=3,
        priority_scheduling=True,
    ),
    a_backend(
        "c",
        profile=a_profile(slowness=0.5, kv_tokens=2_500, max_num_seqs=4),
        models=frozenset({"m2"}),
        weight=2.0,
    ),
)
SPARE = a_backend("d", profile=a_profile(slowness=9, kv_tokens=900), models=frozenset({"m1"}))

DIAMOND = WorkflowSpec(
    name="diamond",
    stages=(
        StageSpec(name="a"),
        StageSpec(name="b", depends_on=("a",)),
        StageSpec(name="c", depends_on=("a",), fan_out=2),
        StageSpec(name="d", depends_on=("b", "c")),
    ),
    deadline_s=40.0,
)
CHAIN = WorkflowSpec(
    name="chain", stages=(StageSpec(name="a"), StageSpec(name="b", depends_on=("a",)))
)
SHORTER = WorkflowSpec(name="chain", stages=(StageSpec(name="a"),))

SEGMENTS = (
    (),
    (PromptSegment(1, 50),),
    (PromptSegment(1, 50), PromptSegment(2, 30)),
    (PromptSegment(2, 80),),
    (PromptSegment(3, 20), PromptSegment(3, 20)),
)
"""Key 2 ends the same prefix, cut in two ways: 50 + 30 tokens, or 80 at once."""
FORECASTS = (
    LengthDistribution.point(5),
    LengthDistribution.point(60),
    LengthDistribution.from_samples([3, 10, 200]),
    LengthDistribution.from_samples([1, 900]),
)
ELIGIBLE = (
    *(None,) * 9,
    frozenset({BackendId("a")}),
    frozenset({BackendId("b"), BackendId("c")}),
    frozenset({BackendId("nowhere")}),
)

Move = tuple[str, int, int, int]
_MOVES = (
    *("arrive",) * 12,
    *("finish",) * 4,
    "first_token",
    "progress",
    "fail",
    "break",
    "abandon",
    "late_word",
    "state",
    "reshape",
    "remove",
    "add",
    "add",
    "trust",
    "hear",
    "look",
    "policy",
    "rules",
    "declare",
    "complete",
    "cancel",
    "wait",
    "wait",
    "shutdown",
)
_NUMBERS = st.integers(0, 1 << 20)
moves = st.tuples(st.sampled_from(_MOVES), _NUMBERS, _NUMBERS, _NUMBERS)


def scripts(max_size: int = 40) -> st.SearchStrategy[list[Move]]:
    """Lists of moves."""
    return st.lists(moves, max_size=max_size)


limits = st.builds(
    QueueLimits,
    max_requests=st.sampled_from([2, 5, 1000]),
    max_bytes=st.sampled_from([500, 1 << 20]),
    max_predicted_s=st.sampled_from([20.0, 1e9]),
    max_tenant_share=st.sampled_from([0.5, 1.0]),
    timeout_s=st.sampled_from([3.0, 30.0, 120.0]),
    on_unreachable_deadline=st.sampled_from(Unreachable),
)


def impatient(name: str) -> Policy:
    """Return a policy whose calls may hardly be passed, so that short scripts see it matter."""
    return replace(policy_from_name(name), max_passed=2)


class Player:
    """Makes the moves of a script on one scheduler, under the eyes of a referee."""

    def __init__(self, policy: str, limits: QueueLimits, *, policy_changes: bool = True) -> None:
        workflows = Workflows({"diamond": DIAMOND}, idle_timeout_s=20.0)
        self.scheduler = Scheduler(FLEET, impatient(policy), limits=limits, workflows=workflows)
        self.referee = Referee(self.scheduler)
        self.now = 100.0
        self.log: list[list[Command]] = []
        self._policy_changes = policy_changes
        self._seen = 0

    def play(self, script: Sequence[Move]) -> None:
        """Make every move."""
        for name, a, b, c in script:
            self.now += c % 8 / 4
            getattr(self, f"_{name}")(a, b, c // 8)

    def feed(self, event: Event) -> list[Command]:
        """Tell the scheduler and check what it does."""
        commands = self.referee.feed(event, self.now)
        self.log.append(commands)
        return commands

    def wind_up(self) -> None:
        """Let everything end: backends up, running calls finish, timeouts pass."""
        for backend in FLEET:
            self.feed(BackendChanged(backend, BackendState.UP))
        for _ in range(10_000):
            running = self.referee.running
            if running:
                self.now += 0.25
                self.feed(Finished(RequestId(min(running)), 3))
            elif self.scheduler.wake_at is not None and self.scheduler.wake_at < float("inf"):
                self.now = max(self.now, self.scheduler.wake_at)
                self.feed(TimePassed())
            else:
                break
        self.referee.check_idle()

    # The moves

    def _arrive(self, a: int, b: int, c: int) -> None:
        self._seen += 1
        self.feed(Arrived(self._request(f"r{self._seen}", a, b, c)))

    def _request(self, request_id: str, a: int, b: int, c: int) -> InferenceRequest:
        tenant = TenantId(f"t{a % 3}")
        workflow = None
        if b % 3:
            workflow = WorkflowRef(
                key=WorkflowKey(tenant, f"w{b // 3 % 3}"),
                name=(None, "diamond", "learned")[b // 9 % 3],
                stage=(None, "a", "b", "c", "d", "e")[b // 27 % 6],
                deadline_s=(None, None, 50.0, 5.0, 0.01)[b // 162 % 5],
                final=b // 810 % 4 == 0,
            )
        return InferenceRequest(
            id=RequestId(request_id),
            model=(*("m1", "m1", "m2") * 4, "m3")[a // 3 % 13],
            prompt_tokens=(*(100, 120, 300, 700, 1_000) * 3, 1_600, 2_600, 9_000)[c % 18],
            output=FORECASTS[c // 18 % 4],
            tenant=tenant,
            flow=("", "x")[a // 39 % 2],
            prefix=SEGMENTS[c // 72 % 5],
            workflow=workflow,
            deadline_at=(None, self.now + 9, None, self.now - 1)[c // 360 % 4],
            priority=(0, 0, 0, 1, -1)[a // 78 % 5],
            eligible=ELIGIBLE[a // 390 % 12],
            first_seen_at=(None, None, self.now - 4)[a // 4680 % 3],
            body_bytes=(0, 200)[a // 14040 % 2],
            queue_timeout_s=(None, None, 1.0, 60.0)[a // 56160 % 4],
            reports_first_token=a // 28080 % 2 == 0,
        )

    def _finish(self, a: int, b: int, _: int) -> None:
        if request_id := self._pick(self.referee.running, a):
            self.feed(Finished(request_id, b % 300))

    def _first_token(self, a: int, _: int, __: int) -> None:
        if request_id := self._pick(self.referee.running, a):
            self.feed(FirstToken(request_id))

    def _progress(self, a: int, b: int, _: int) -> None:
        if request_id := self._pick(self.referee.running, a):
            self.feed(Progressed(request_id, b % 1000))

    def _fail(self, a: int, b: int, _: int) -> None:
        if request_id := self._pick(self.referee.running, a):
            self.feed(Failed(request_id, FailureKind.RESET, retryable=True, output_tokens=b % 2))

    def _break(self, a: int, b: int, _: int) -> None:
        if request_id := self._pick(self.referee.running, a):
            kind = list(FailureKind)[b % len(FailureKind)]
            self.feed(Failed(request_id, kind, retryable=False, output_tokens=b % 7))

    def _abandon(self, a: int, b: int, _: int) -> None:
        if request_id := self._pick(self.scheduler.calls, a):
            self.feed(Abandoned(request_id, b % 5))

    def _late_word(self, a: int, b: int, c: int) -> None:
        """Something about a call that is over, never came, waits, or is here already."""
        waiting = [i for i in self.scheduler.calls if i not in self.referee.running]
        over = [i for i in self.referee.arrivals if i not in self.scheduler.calls]
        request_id = self._pick([*waiting, *over, "nobody"], a)
        assert request_id is not None
        events: list[Event] = [
            Finished(request_id, 3),
            FirstToken(request_id),
            Progressed(request_id, 7),
            Failed(request_id, FailureKind.RESET, retryable=True),
            Failed(request_id, FailureKind.SERVER_ERROR, retryable=False),
            BackendRemoved(BackendId("nowhere")),
            WorkflowCompleted(WorkflowKey(TenantId("t0"), "never")),
            WorkflowCancelled(WorkflowKey(TenantId("t0"), "never")),
            TimePassed(),
        ]
        if request_id in over or request_id == "nobody":
            events.append(Abandoned(request_id))
        if request_id != "nobody":
            events.append(Arrived(self._request(request_id, b, c, a)))
        self.feed(events[b % len(events)])

    def _state(self, a: int, b: int, _: int) -> None:
        loads = sorted(self.scheduler.fleet.loads.items())
        if loads:
            backend = loads[a % len(loads)][1].backend
            states = (BackendState.UP, BackendState.UP, BackendState.DRAINING, BackendState.DOWN)
            self.feed(BackendChanged(backend, states[b % 4]))

    def _reshape(self, a: int, b: int, _: int) -> None:
        """A backend's configuration is another from now on."""
        loads = sorted(self.scheduler.fleet.loads.items())
        if not loads:
            return
        load = loads[a % len(loads)][1]
        old = load.backend
        new: list[Backend] = [
            replace(old, models=frozenset({"m1"})),
            replace(old, models=frozenset({"m1", "m2"})),
            replace(old, models=frozenset({"m1", "m2"})),
            replace(old, max_in_flight=b // 7 % 4 + 1),
            replace(old, max_in_flight=None),
            replace(old, profile=replace(old.profile, kv_tokens=1_000 + b // 7 % 4 * 700)),
            replace(old, profile=replace(old.profile, prefill_s_per_token=0.002)),
        ]
        self.feed(BackendChanged(new[b % 7], load.state))

    def _remove(self, a: int, _: int, __: int) -> None:
        loads = sorted(self.scheduler.fleet.loads)
        if len(loads) > 1:
            self.feed(BackendRemoved(loads[a % len(loads)]))

    def _add(self, a: int, _: int, __: int) -> None:
        self.feed(BackendChanged((*FLEET, SPARE)[a % 4], BackendState.UP))

    def _hear(self, a: int, _: int, __: int) -> None:
        loads = [*sorted(self.scheduler.fleet.loads), BackendId("nowhere")]
        self.feed(Heard(loads[a % len(loads)]))

    def _look(self, a: int, b: int, _: int) -> None:
        loads = [*sorted(self.scheduler.fleet.loads), BackendId("nowhere")]
        self.feed(EngineLooked(loads[a % len(loads)], (None, 0, 0, 9)[b % 4]))

    def _trust(self, a: int, _: int, __: int) -> None:
        loads = [*sorted(self.scheduler.fleet.loads), BackendId("nowhere")]
        self.feed(BackendTrusted(loads[a % len(loads)]))

    def _rules(self, a: int, b: int, c: int) -> None:
        """All rules are others from now on, or some of them."""
        old = self.scheduler.admission.limits
        limits = replace(
            old,
            max_requests=(0, 1, 4, 1000)[a % 4],
            timeout_s=(0.5, 40.0)[a // 4 % 2],
            max_backend_share=(0.3, 1.0)[a // 8 % 2],
            max_model_share=(0.5, 1.0)[a // 16 % 2],
        )
        health = HealthRules(
            failures=b % 3 + 1,
            window=b // 3 % 4 + 2,
            cooldown_s=(0.1, 5.0)[b // 12 % 2],
            ramp_s=(0.0, 1.0, 30.0)[b // 24 % 3],
            max_ejected_share=(0.0, 0.5, 1.0)[b // 72 % 3],
            silence_s=(1.0, 60.0)[b // 216 % 2],
            stall_s=(None, 1.0, 5.0)[b // 432 % 3],
        )
        retries = RetryRules(
            max_attempts=c % 4 + 1,
            burst=(0, 1, 256)[c // 4 % 3],
            backoff_s=(0.0, 0.05)[c // 12 % 2],
        )
        event = Reconfigured(
            limits=limits if a // 6 % 2 else None,
            weights={"t0": 2.0} if a // 12 % 2 else None,
            health=health if a // 24 % 2 else None,
            retries=retries if a // 48 % 2 else None,
            workflows={"diamond": CHAIN} if a // 96 % 2 else None,
        )
        self.feed(event)

    def _policy(self, a: int, _: int, __: int) -> None:
        if self._policy_changes:
            name = MIXED_POLICIES[a % len(MIXED_POLICIES)]
            self.feed(PolicyChanged(impatient(name)))

    def _declare(self, a: int, b: int, _: int) -> None:
        spec = (DIAMOND, CHAIN, SHORTER)[b % 3]
        deadline_s = (None, 9.0)[b // 3 % 2]
        self.feed(WorkflowDeclared(self._workflow(a), spec, deadline_s, strict=b // 6 % 3 == 0))

    def _complete(self, a: int, _: int, __: int) -> None:
        self.feed(WorkflowCompleted(self._workflow(a)))

    def _cancel(self, a: int, _: int, __: int) -> None:
        self.feed(WorkflowCancelled(self._workflow(a)))

    def _wait(self, a: int, _: int, __: int) -> None:
        """Time passes; the alarms on the way go off when they should."""
        until = self.now + a % 20
        while (at := self.scheduler.wake_at) is not None and at <= until:
            self.now = max(self.now, at)
            self.feed(TimePassed())
        self.now = until

    def _shutdown(self, a: int, _: int, __: int) -> None:
        if a % 20 == 0:
            self.feed(ShutdownBegan())

    @staticmethod
    def _workflow(a: int) -> WorkflowKey:
        return WorkflowKey(TenantId(f"t{a % 3}"), f"w{a // 3 % 3}")

    @staticmethod
    def _pick(ids: Iterable[str], a: int) -> RequestId | None:
        ordered = sorted(ids)
        return RequestId(ordered[a % len(ordered)]) if ordered else None
