"""Workflows: stages, deadlines, budgets, what is held and what ends."""

import pytest

from gateway.core import workflow
from gateway.core.admission import QueueLimits, Unreachable
from gateway.core.commands import Command, Evict, Reject, Settle, Start, Stop, WorkflowEnded
from gateway.core.events import (
    Abandoned,
    Arrived,
    Failed,
    Finished,
    ShutdownBegan,
    TimePassed,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowDeclared,
)
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.stages import StageState, WorkflowState
from gateway.core.types import (
    ANONYMOUS,
    InferenceRequest,
    RequestId,
    TenantId,
    WorkflowKey,
    WorkflowRef,
)
from gateway.core.workflow import Workflows
from tests.builders import a_backend, a_request, a_workflow

W = WorkflowKey(ANONYMOUS, "w")
CHAIN = WorkflowSpec(
    name="chain",
    stages=(StageSpec(name="plan"), StageSpec(name="write", depends_on=("plan",))),
    deadline_s=60.0,
)
JOIN = WorkflowSpec(
    name="join",
    stages=(
        StageSpec(name="draft", fan_out=2),
        StageSpec(name="lint"),
        StageSpec(name="merge", depends_on=("draft", "lint")),
    ),
)


def a_scheduler(
    spec: WorkflowSpec | None = None,
    *,
    max_in_flight: int | None = None,
    workflows: Workflows | None = None,
    limits: QueueLimits | None = None,
) -> Scheduler:
    """A scheduler that knows a template."""
    if workflows is None:
        workflows = Workflows({spec.name: spec} if spec else {}, idle_timeout_s=30.0)
    return Scheduler(
        [a_backend("a", max_in_flight=max_in_flight)],
        policy_from_name("hexsage"),
        workflows=workflows,
        limits=limits or QueueLimits(),
    )


def call(
    name: str,
    stage: str | None = None,
    template: str | None = None,
    *,
    key: str = "w",
    deadline_s: float | None = None,
    final: bool = False,
) -> InferenceRequest:
    """A call of workflow w; 10 tokens take a second."""
    ref = a_workflow(key, template=template, stage=stage, deadline_s=deadline_s, final=final)
    return a_request(name, workflow=ref)


def starts(commands: list[Command]) -> list[str]:
    """Which calls were started."""
    return [c.request_id for c in commands if isinstance(c, Start)]


def started(commands: list[Command]) -> list[str]:
    """The calls that are sent."""
    return [command.request_id for command in commands if isinstance(command, Start)]


def endings(commands: list[Command]) -> list[tuple[str, str]]:
    """Which workflows ended, and how."""
    return [(c.key.id, c.state) for c in commands if isinstance(c, WorkflowEnded)]


def done(name: str) -> Finished:
    """The call is answered."""
    return Finished(RequestId(name), 10)


def broke(name: str) -> Failed:
    """The call failed for good."""
    return Failed(RequestId(name), FailureKind.SERVER_ERROR, retryable=False)


# Held stages


def test_a_call_is_held_until_the_stage_before_it_is_answered() -> None:
    scheduler = a_scheduler(CHAIN)
    scheduler.handle(Arrived(call("p", "plan", "chain")), now=0.0)

    assert scheduler.handle(Arrived(call("w", "write", "chain")), now=1.0) == []
    assert (scheduler.waiting, scheduler.running) == (1, 1)

    assert starts(scheduler.handle(done("p"), now=2.0)) == ["w"]


def test_a_stage_that_fans_out_must_be_answered_as_often_as_declared() -> None:
    scheduler = a_scheduler(JOIN)
    for name, stage in (("d1", "draft"), ("l", "lint"), ("m", "merge")):
        scheduler.handle(Arrived(call(name, stage, "join")), now=0.0)

    assert starts(scheduler.handle(done("d1"), now=1.0)) == []
    assert starts(scheduler.handle(done("l"), now=2.0)) == []
    scheduler.handle(Arrived(call("d2", "draft", "join")), now=3.0)
    assert starts(scheduler.handle(done("d2"), now=4.0)) == ["m"]


def test_a_stage_is_answered_when_none_of_its_calls_is_open() -> None:
    scheduler = a_scheduler(CHAIN)
    for name, stage in (("p1", "plan"), ("p2", "plan"), ("w", "write")):
        scheduler.handle(Arrived(call(name, stage, "chain")), now=0.0)

    assert starts(scheduler.handle(done("p1"), now=1.0)) == []
    assert starts(scheduler.handle(done("p2"), now=2.0)) == ["w"]


def test_a_stage_that_failed_does_not_open_the_next() -> None:
    scheduler = a_scheduler(CHAIN)
    scheduler.handle(Arrived(call("p", "plan", "chain")), now=0.0)
    scheduler.handle(Arrived(call("w", "write", "chain")), now=0.0)

    assert starts(scheduler.handle(broke("p"), now=1.0)) == []

    scheduler.handle(Arrived(call("again", "plan", "chain")), now=2.0)
    assert starts(scheduler.handle(done("again"), now=3.0)) == ["w"]


def test_a_stage_once_open_stays_open_while_the_one_before_it_repeats() -> None:
    scheduler = a_scheduler(CHAIN)
    scheduler.handle(Arrived(call("p1", "plan", "chain")), now=0.0)
    scheduler.handle(done("p1"), now=1.0)
    scheduler.handle(Arrived(call("p2", "plan", "chain")), now=2.0)

    assert starts(scheduler.handle(Arrived(call("w", "write", "chain")), now=3.0)) == ["w"]


def test_stages_that_were_not_declared_are_never_held() -> None:
    scheduler = a_scheduler(CHAIN)

    assert starts(scheduler.handle(Arrived(call("x", "surprise", "chain")), now=0.0)) == ["x"]
    assert starts(scheduler.handle(Arrived(call("y", None, "chain")), now=0.0)) == ["y"]


def test_a_held_call_times_out_like_any_that_waits() -> None:
    scheduler = a_scheduler(CHAIN, limits=QueueLimits(timeout_s=10.0))
    scheduler.handle(Arrived(call("w", "write", "chain")), now=0.0)

    evict, settled = scheduler.handle(TimePassed(), now=10.0)

    assert isinstance(evict, Evict)
    assert isinstance(settled, Settle)
    assert settled.reason is RejectReason.QUEUE_TIMEOUT


def test_a_client_that_leaves_takes_its_held_call_along() -> None:
    scheduler = a_scheduler(CHAIN)
    scheduler.handle(Arrived(call("w", "write", "chain")), now=0.0)

    (settled,) = scheduler.handle(Abandoned(RequestId("w")), now=1.0)

    assert isinstance(settled, Settle)
    assert settled.outcome is Outcome.ABANDONED
    assert scheduler.waiting == 0


def test_a_strict_workflow_refuses_what_it_would_hold() -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN, strict=True), now=0.0)

    _, settled = scheduler.handle(Arrived(call("w", "write")), now=1.0)

    assert isinstance(settled, Settle)
    assert settled.reason is RejectReason.STAGE_NOT_READY
    scheduler.handle(Arrived(call("p", "plan")), now=2.0)
    scheduler.handle(done("p"), now=3.0)
    assert starts(scheduler.handle(Arrived(call("w", "write")), now=4.0)) == ["w"]


@pytest.mark.parametrize(
    "declared_anew",
    [
        pytest.param(WorkflowSpec(name="chain", stages=(StageSpec(name="plan"),)), id="without it"),
        pytest.param(
            WorkflowSpec(name="chain", stages=(StageSpec(name="write"),)), id="waiting for nothing"
        ),
    ],
)
def test_a_new_declaration_releases_what_it_no_longer_holds(declared_anew: WorkflowSpec) -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN), now=0.0)
    scheduler.handle(Arrived(call("w1", "write")), now=1.0)

    commands = scheduler.handle(WorkflowDeclared(W, declared_anew), now=2.0)

    assert starts(commands) == ["w1"]
    assert starts(scheduler.handle(Arrived(call("w2", "write")), now=3.0)) == ["w2"]


def test_held_calls_that_are_too_late_when_their_turn_comes_are_each_refused_once() -> None:
    limits = QueueLimits(on_unreachable_deadline=Unreachable.REJECT)
    scheduler = a_scheduler(CHAIN, limits=limits)
    scheduler.handle(Arrived(call("p", "plan", "chain", deadline_s=5.0)), now=0.0)
    for name in ("w1", "w2", "w3"):
        scheduler.handle(Arrived(call(name, "write", "chain")), now=0.0)

    commands = scheduler.handle(done("p"), now=4.9)

    refused = [c.request_id for c in commands if isinstance(c, Evict)]
    assert refused == ["w1", "w2", "w3"]
    settled = [c for c in commands if isinstance(c, Settle) and c.request_id != "p"]
    assert {(s.outcome, s.reason) for s in settled} == {
        (Outcome.EVICTED, RejectReason.DEADLINE_UNREACHABLE)
    }
    assert len(settled) == 3
    assert scheduler.waiting == scheduler.running == 0


# How workflows end


def test_a_workflow_ends_with_its_final_call() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a")), now=0.0)
    scheduler.handle(done("a"), now=1.0)
    scheduler.handle(Arrived(call("z", final=True, deadline_s=9.0)), now=2.0)

    commands = scheduler.handle(done("z"), now=5.0)

    (ended,) = (c for c in commands if isinstance(c, WorkflowEnded))
    assert (ended.state, ended.calls) == (WorkflowState.COMPLETED, 2)
    assert (ended.opened_at, ended.ended_at, ended.deadline_at) == (0.0, 5.0, 9.0)
    assert not ended.is_late
    assert scheduler.workflows.count == 0


def test_siblings_of_the_final_call_end_first() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("sibling")), now=0.0)
    scheduler.handle(Arrived(call("z", final=True)), now=0.0)

    assert endings(scheduler.handle(done("z"), now=1.0)) == []
    assert endings(scheduler.handle(done("sibling"), now=2.0)) == [("w", "completed")]


def test_a_workflow_whose_last_call_failed_has_failed() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("z", final=True)), now=0.0)

    assert endings(scheduler.handle(broke("z"), now=1.0)) == [("w", "failed")]


def test_a_client_may_say_that_no_other_call_will_come() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a")), now=0.0)

    assert endings(scheduler.handle(WorkflowCompleted(W), now=1.0)) == []
    assert endings(scheduler.handle(done("a"), now=2.0)) == [("w", "completed")]
    assert scheduler.handle(WorkflowCompleted(W), now=3.0) == []


def test_a_declared_workflow_without_calls_can_be_completed() -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN), now=0.0)

    assert endings(scheduler.handle(WorkflowCompleted(W), now=1.0)) == [("w", "completed")]


def test_a_workflow_that_goes_quiet_expires_as_of_its_last_call() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a")), now=0.0)
    assert scheduler.wake_at is None  # it has a call
    scheduler.handle(done("a"), now=7.0)
    assert scheduler.wake_at == 37.0

    (ended,) = scheduler.handle(TimePassed(), now=37.0)

    assert isinstance(ended, WorkflowEnded)
    assert (ended.state, ended.ended_at) == (WorkflowState.EXPIRED, 7.0)
    assert scheduler.wake_at is None


def test_to_cancel_a_workflow_ends_its_held_waiting_and_running_calls() -> None:
    scheduler = a_scheduler(CHAIN, max_in_flight=2)
    for name in ("running 1", "running 2", "waiting"):
        scheduler.handle(Arrived(call(name, "plan", "chain")), now=0.0)
    scheduler.handle(Arrived(call("held", "write", "chain")), now=0.0)
    scheduler.handle(Arrived(call("other", key="v")), now=0.0)

    commands = scheduler.handle(WorkflowCancelled(W), now=1.0)

    assert endings(commands) == [("w", "cancelled")]
    settled = {c.request_id: (c.outcome, c.reason) for c in commands if isinstance(c, Settle)}
    assert settled == dict.fromkeys(
        ("running 1", "running 2", "waiting", "held"),
        (Outcome.CANCELLED, RejectReason.WORKFLOW_CANCELLED),
    )
    stopped = [(c.request_id, c.reason) for c in commands if isinstance(c, Stop)]
    assert stopped == [
        ("running 1", RejectReason.WORKFLOW_CANCELLED),
        ("running 2", RejectReason.WORKFLOW_CANCELLED),
    ]
    # Whoever waited for its own client to be told is told.
    evicted = [c.request_id for c in commands if isinstance(c, Evict)]
    assert evicted == ["waiting", "held"]
    # No sibling was started into the room that a stop made; the stranger was.
    assert starts(commands) == ["other"]


def test_ids_are_the_tenants_own() -> None:
    scheduler = a_scheduler()
    stranger = WorkflowKey(TenantId("stranger"), "w")
    scheduler.handle(Arrived(call("a")), now=0.0)

    assert scheduler.handle(WorkflowCancelled(stranger), now=1.0) == []
    assert scheduler.workflows.get(stranger) is None
    assert scheduler.running == 1


def test_an_id_that_ended_can_be_opened_anew() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", final=True)), now=0.0)
    scheduler.handle(done("a"), now=1.0)

    scheduler.handle(Arrived(call("b")), now=2.0)

    run = scheduler.workflows.get(W)
    assert run is not None
    assert (run.opened_at, run.total_calls) == (2.0, 1)


def test_a_call_that_is_refused_opens_no_workflow() -> None:
    scheduler = a_scheduler(max_in_flight=1, limits=QueueLimits(max_requests=0))
    scheduler.handle(Arrived(a_request("busy")), now=0.0)

    scheduler.handle(Arrived(call("a")), now=0.0)

    assert scheduler.workflows.count == 0


def test_there_are_never_more_open_workflows_than_the_bound_while_some_are_idle() -> None:
    scheduler = a_scheduler(workflows=Workflows(max_open=3))
    scheduler.handle(Arrived(call("busy", key="busy")), now=0.0)
    ended = []
    for number in range(6):
        name = f"w{number}"
        key = WorkflowKey(ANONYMOUS, name)
        ended += endings(scheduler.handle(WorkflowDeclared(key, CHAIN), now=1.0 + number))
        assert scheduler.workflows.count <= 3

    assert ended == [(f"w{number}", "expired") for number in range(4)]
    assert scheduler.workflows.get(WorkflowKey(ANONYMOUS, "busy")) is not None


# Deadlines and budgets


def test_the_deadline_counts_from_the_first_call() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", deadline_s=60.0)), now=10.0)

    scheduler.handle(Arrived(call("b")), now=50.0)

    assert scheduler.calls["b"].deadline_at == 70.0
    assert scheduler.calls["b"].budget_s == 20.0


def test_a_later_deadline_replaces_the_one_before() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", deadline_s=60.0)), now=10.0)

    scheduler.handle(Arrived(call("b", deadline_s=100.0)), now=50.0)

    assert scheduler.calls["b"].deadline_at == 110.0


@pytest.mark.parametrize(
    ("declared_s", "default_s", "deadline_at"),
    [(None, None, 60.0), (20.0, None, 20.0), (None, 99.0, 60.0)],
)
def test_where_a_declared_workflow_has_its_deadline_from(
    declared_s: float | None, default_s: float | None, deadline_at: float
) -> None:
    workflows = Workflows(default_deadline_s=default_s)
    run = workflows.declare(W, CHAIN, declared_s, False, 0.0)

    assert run.deadline_at == deadline_at


def test_a_workflow_nobody_set_a_deadline_for_has_the_default() -> None:
    workflows = Workflows(default_deadline_s=99.0)

    assert workflows.open(a_workflow(), 1.0).deadline_at == 100.0


def test_a_stage_gets_its_share_of_what_is_left() -> None:
    """t_SLO,j = (deadline - now) x t_j / (t_j + what comes after), by hand."""
    workflows = Workflows()
    for _ in range(3):
        workflows.templates.learn("t", [("plan", 2.0), ("write", 5.0), ("check", 1.0)])
    scheduler = a_scheduler(workflows=workflows)

    scheduler.handle(Arrived(call("a", "plan", "t", deadline_s=35.0)), now=0.0)
    assert scheduler.calls["a"].reference_s == pytest.approx(1.0)
    # This call takes 1 s, 5 + 1 are to come after its stage.
    assert scheduler.calls["a"].budget_s == pytest.approx(35.0 * 1 / 7)

    # What was really spent counts: at 20, 15 s are left for a second of this and one of "check".
    scheduler.handle(done("a"), now=15.0)
    scheduler.handle(Arrived(call("b", "write", "t")), now=20.0)
    assert scheduler.calls["b"].budget_s == pytest.approx(15.0 * 1 / 2)


def test_a_stage_of_an_unknown_workflow_may_use_all_that_is_left() -> None:
    scheduler = a_scheduler()

    scheduler.handle(Arrived(call("a", "plan", "t", deadline_s=35.0)), now=0.0)

    assert scheduler.calls["a"].budget_s == 35.0


def test_after_the_deadline_nothing_is_left() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", deadline_s=1.0)), now=0.0)

    scheduler.handle(Arrived(call("b")), now=5.0)

    assert scheduler.calls["b"].budget_s == 0.0


def test_a_held_call_has_its_budget_from_when_it_was_released() -> None:
    scheduler = a_scheduler(CHAIN)
    scheduler.handle(Arrived(call("p", "plan", "chain")), now=0.0)
    scheduler.handle(Arrived(call("w", "write", "chain")), now=1.0)

    scheduler.handle(done("p"), now=10.0)

    held = scheduler.calls["w"]
    assert (held.ready_at, held.budget_s) == (10.0, 50.0)


# What runs teach


def test_the_scheduler_uses_the_workflows_it_is_given_though_none_is_open_yet() -> None:
    workflows = Workflows(idle_timeout_s=7.0)

    scheduler = Scheduler([a_backend()], policy_from_name("hexsage"), workflows=workflows)

    assert scheduler.workflows is workflows


def test_a_call_knows_how_much_of_its_workflow_is_still_to_come() -> None:
    workflows = Workflows()
    workflows.templates.learn("t", [("plan", 2.0), ("write", 5.0), ("check", 1.0)])
    scheduler = a_scheduler(workflows=workflows)

    scheduler.handle(Arrived(call("r", "write", "t")), now=0.0)

    r = scheduler.calls["r"]
    assert r.remaining_s == pytest.approx(r.reference_s + 1.0)
    assert r.total_s == pytest.approx(8.0)


def test_a_call_of_an_unknown_workflow_counts_for_itself() -> None:
    scheduler = a_scheduler()

    scheduler.handle(Arrived(call("r")), now=0.0)

    r = scheduler.calls["r"]
    assert r.remaining_s == r.total_s == r.reference_s > 0


def test_a_finished_run_is_learned_by_what_its_calls_took_alone() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", "plan", "t")), now=0.0)
    scheduler.handle(Finished(RequestId("a"), 20), now=50.0)  # 2 s alone, whatever it waited
    for name in ("b1", "b2"):
        scheduler.handle(Arrived(call(name, "write", "t", final=name == "b2")), now=60.0)
    scheduler.handle(Finished(RequestId("b1"), 50), now=90.0)  # side by side: 5 s, not 6
    scheduler.handle(Finished(RequestId("b2"), 10), now=99.0)

    template = scheduler.workflows.templates.get("t")
    assert template is not None
    assert template.total_s.value == pytest.approx(7.0)
    assert template.stages["plan"].remaining_s.value == pytest.approx(7.0)
    assert template.stages["write"].own_s.value == pytest.approx(5.0)


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_runs_that_were_cut_short_teach_nothing(ending: str) -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a", "plan", "t", final=True)), now=0.0)

    event = WorkflowCancelled(W) if ending == "cancelled" else broke("a")

    assert endings(scheduler.handle(event, now=1.0)) == [("w", ending)]
    assert scheduler.workflows.templates.get("t") is None


def test_repeats_of_a_stage_are_steps_of_their_own() -> None:
    scheduler = a_scheduler()
    for number in range(3):
        scheduler.handle(Arrived(call(f"r{number}", "revise", "t")), now=number)
        scheduler.handle(done(f"r{number}"), now=number + 0.5)

    run = scheduler.workflows.get(W)
    assert run is not None
    assert [(visit.stage, visit.repeat) for visit in run.path] == [
        ("revise", 0),
        ("revise", 1),
        ("revise", 2),
    ]
    assert run.stages["revise"].state is StageState.ANSWERED


# Declarations that make no sense


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        pytest.param((StageSpec(name="a"), StageSpec(name="a")), "twice", id="a name used twice"),
        pytest.param((StageSpec(name="a", depends_on=("b",)),), "not one of", id="unknown"),
        pytest.param((StageSpec(name="a", depends_on=("a",)),), "waits for itself", id="itself"),
        pytest.param(
            (StageSpec(name="a", depends_on=("b",)), StageSpec(name="b", depends_on=("a",))),
            "waits for itself",
            id="a cycle",
        ),
        pytest.param((StageSpec(name=""),), "name of its own", id="no name"),
        pytest.param((StageSpec(name="-"),), "name of its own", id="the name of nameless stages"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(
    stages: tuple[StageSpec, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WorkflowSpec(name="w", stages=stages)


# What is settled, refused and expected


def settled(commands: list[Command]) -> Settle:
    """The one settlement."""
    (found,) = (command for command in commands if isinstance(command, Settle))
    return found


def test_a_call_that_sends_only_the_id_is_settled_under_the_declared_name() -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN, deadline_s=60.0), now=0.0)
    scheduler.handle(Arrived(call("a")), now=1.0)

    settle = settled(scheduler.handle(done("a"), now=2.0))

    assert (settle.workflow_name, settle.deadline_at) == (CHAIN.name, 60.0)


def test_a_held_call_that_leaves_is_settled_with_its_workflows_deadline() -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN, deadline_s=60.0), now=0.0)
    scheduler.handle(Arrived(call("held", stage="write")), now=1.0)

    settle = settled(scheduler.handle(Abandoned(RequestId("held")), now=2.0))

    assert (settle.workflow_name, settle.deadline_at) == (CHAIN.name, 60.0)


def test_a_refused_call_is_settled_under_its_workflows_name_too() -> None:
    scheduler = a_scheduler()
    scheduler.handle(WorkflowDeclared(W, CHAIN), now=0.0)
    scheduler.handle(ShutdownBegan(), now=1.0)

    assert settled(scheduler.handle(Arrived(call("a")), now=2.0)).workflow_name == CHAIN.name


def test_a_cancelled_workflow_takes_no_more_calls_until_it_is_declared_again() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(call("a")), now=0.0)
    scheduler.handle(WorkflowCancelled(W), now=1.0)

    (refusal, _) = scheduler.handle(Arrived(call("b")), now=2.0)

    assert isinstance(refusal, Reject)
    assert refusal.reason is RejectReason.WORKFLOW_CLOSED
    assert scheduler.workflows.count == 0
    scheduler.handle(WorkflowDeclared(W, CHAIN), now=3.0)
    assert started(scheduler.handle(Arrived(call("c")), now=4.0)) == ["c"]


def test_only_so_many_cancelled_workflows_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "MAX_CANCELLED", 2)
    scheduler = a_scheduler()
    for number in range(3):
        scheduler.handle(Arrived(call(f"r{number}", key=f"w{number}")), now=0.0)
        scheduler.handle(WorkflowCancelled(WorkflowKey(ANONYMOUS, f"w{number}")), now=1.0)

    closed = [
        scheduler.workflows.was_cancelled(WorkflowKey(ANONYMOUS, f"w{number}"))
        for number in range(3)
    ]
    assert closed == [False, True, True]


@pytest.mark.parametrize(
    ("is_session", "asked_s", "deadline_at"),
    [(False, None, 60.0), (True, None, None), (True, 9.0, 9.0), (False, 9.0, 9.0)],
)
def test_a_session_has_no_deadline_but_the_clients_own(
    is_session: bool, asked_s: float | None, deadline_at: float | None
) -> None:
    """It may go on for hours: after the first minute all its calls would be the most urgent."""
    workflows = Workflows(default_deadline_s=60.0)
    ref = WorkflowRef(key=W, deadline_s=asked_s, is_session=is_session)

    assert workflows.open(ref, 0.0).deadline_at == deadline_at


def test_a_stage_that_may_not_come_again_has_less_ahead_of_it() -> None:
    """Half of the runs revise twice, 10 s each; then 5 s of checking in any case."""
    limited = WorkflowSpec(name="limited", stages=(StageSpec(name="revise", max_repeats=1),))
    workflows = Workflows({"limited": limited})
    for name in ("limited", "free"):
        for revisions in (1, 2) * 50:
            path = [("revise", 10.0)] * revisions + [("check", 5.0)]
            workflows.templates.learn(name, path)
    scheduler = a_scheduler(workflows=workflows)
    for name in ("limited", "free"):
        scheduler.handle(Arrived(call(name, "revise", name, key=name)), now=0.0)

    rest = {name: c.remaining_s - c.reference_s for name, c in scheduler.calls.items()}
    assert rest["free"] == pytest.approx(5.0 + 10.0 / 2, rel=0.1)
    assert rest["limited"] == pytest.approx(5.0, rel=0.1)
