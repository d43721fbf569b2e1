"""Tests of loadgen.plan."""

import pytest

from gateway.sim.trace import TraceError
from loadgen.plan import Plan, arrival_instants, build, drawn, resampled
from tests.loadgen.builders import a_trace_call, a_trace_workflow


def a_plan(seed: int = 1, qps: float = 0.5, workload: str = "text2sql") -> Plan:
    workflows = drawn(workload, 40, seed)
    instants = arrival_instants(workflows, qps=qps, seed=seed, cv=1.0)
    return build(workflows, instants, seed=seed, qps=qps, deadline_s=60.0)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert a_plan() == a_plan()
    assert a_plan().digest == a_plan().digest


def test_another_seed_or_rate_gives_another_plan() -> None:
    digests = {a_plan().digest, a_plan(seed=2).digest, a_plan(qps=0.6).digest}

    assert len(digests) == 3


def test_another_rate_sends_the_same_calls_at_other_instants() -> None:
    slow, fast = a_plan(qps=0.25), a_plan(qps=0.5)

    assert [one.steps for one in slow.workflows] == [one.steps for one in fast.workflows]
    assert [one.arrival_s for one in slow.workflows] == pytest.approx(
        [one.arrival_s * 2 for one in fast.workflows]
    )


@pytest.mark.parametrize("workload", ["text2sql", "chat", "agentic"])
def test_ids_are_unique_and_only_the_last_call_is_final(workload: str) -> None:
    plan = a_plan(workload=workload)
    ids = [call.id for workflow in plan.workflows for call in workflow.calls]

    assert len(set(ids)) == len(ids)
    for workflow in plan.workflows:
        *others, last = workflow.calls
        assert last.is_final
        assert not any(call.is_final for call in others)


def test_a_workflow_that_ends_with_a_fan_out_announces_no_final_call() -> None:
    fan_out = a_trace_workflow([a_trace_call()], [a_trace_call(), a_trace_call()])
    plan = build([fan_out], [0.0], seed=1, qps=None, deadline_s=60.0)

    assert not any(call.is_final for call in plan.workflows[0].calls)


def test_a_cap_is_that_of_the_stage_and_tells_nothing_of_the_call() -> None:
    workflow = a_trace_workflow(
        [a_trace_call("draft", output_tokens=3)],
        [a_trace_call("draft", output_tokens=700)],
        [a_trace_call("judge", output_tokens=2)],
    )
    plan = build([workflow], [0.0], seed=1, qps=None, deadline_s=60.0)

    assert [call.max_tokens for call in plan.workflows[0].calls] == [1024, 1024, 64]


def test_workflows_are_numbered_in_order_of_arrival_and_keep_their_own_deadline() -> None:
    late = a_trace_workflow([a_trace_call("late")], arrival_s=9.0, deadline_s=5.0)
    early = a_trace_workflow([a_trace_call("early")], arrival_s=2.0)
    plan = build([late, early], [7.0, 0.0], seed=1, qps=None, deadline_s=60.0)

    assert [(one.index, next(one.calls).stage) for one in plan.workflows] == [
        (0, "early"),
        (1, "late"),
    ]
    assert [one.deadline_s for one in plan.workflows] == [60.0, 5.0]


def test_recorded_workflows_are_drawn_equally_often() -> None:
    recorded = [a_trace_workflow([a_trace_call(f"stage-{number}")]) for number in range(3)]
    chosen = resampled(recorded, 8, seed=4)

    assert sorted(chosen.count(one) for one in recorded) == [2, 3, 3]
    assert chosen == resampled(recorded, 8, seed=4)


def test_a_trace_without_instants_needs_a_rate() -> None:
    with pytest.raises(TraceError, match="give a rate with --qps"):
        arrival_instants([a_trace_workflow()], qps=None, seed=1, cv=1.0)


def test_recorded_instants_are_kept() -> None:
    recorded = [a_trace_workflow(arrival_s=at) for at in (3.0, 4.0, 8.0)]

    assert arrival_instants(recorded, qps=None, seed=1, cv=1.0) == [0, 1, 5]


def test_a_growing_template_is_sent_as_a_conversation() -> None:
    turns = [
        a_trace_call(prompt_tokens=size, output_tokens=20, template="s", template_tokens=size)
        for size in (100, 150, 151)
    ]
    plan = build(
        [a_trace_workflow(*([turn] for turn in turns))], [0.0], seed=1, qps=None, deadline_s=60.0
    )

    pieces = [call.pieces for call in plan.workflows[0].calls]
    assert [[(piece.role, piece.end) for piece in own] for own in pieces] == [
        [("user", 100)],
        [("user", 100), ("assistant", 120), ("user", 150)],
        # Too short to hold the answer before it: the context was cut, the conversation is new.
        [("user", 151)],
    ]


def test_a_template_that_several_workflows_use_is_shared_between_runs() -> None:
    call = a_trace_call(template="t", template_tokens=50)
    alone = build([a_trace_workflow([call])], [0.0], seed=1, qps=None, deadline_s=60.0)
    both = build([a_trace_workflow([call])] * 2, [0.0, 1.0], seed=1, qps=None, deadline_s=60.0)

    assert next(alone.workflows[0].calls).pieces[0].is_private
    assert not next(both.workflows[0].calls).pieces[0].is_private
