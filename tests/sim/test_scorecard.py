"""A run's figures, and what can be said of two of them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.commands import Settle
from gateway.core.outcomes import Outcome
from gateway.core.types import ANONYMOUS, BackendId, RequestId
from gateway.sim.scorecard import bootstrap_ratio, percentile, score
from gateway.sim.simulator import Arrival, Run, WorkflowResult
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow


def a_result(
    number: int, took_s: float | None, *, deadline_s: float | None = None, name: str = "w"
) -> WorkflowResult:
    call = TraceCall(stage="s", prompt_tokens=1, output_tokens=1)
    workflow = TraceWorkflow(name=name, steps=(TraceStep(calls=(call,)),))
    arrival = Arrival(id=f"w{number}", at=float(number), workflow=workflow, deadline_s=deadline_s)
    return WorkflowResult(arrival=arrival, ended_at=None if took_s is None else number + took_s)


def a_settlement(number: int, waited_s: float, took_s: float) -> Settle:
    return Settle(
        request_id=RequestId(f"w{number}/0"),
        outcome=Outcome.COMPLETED,
        reason=None,
        tenant=ANONYMOUS,
        model="m",
        workflow=None,
        workflow_name=None,
        stage=None,
        backend_id=BackendId("b"),
        attempts=1,
        arrived_at=float(number),
        started_at=number + waited_s,
        first_token_at=None,
        ended_at=number + waited_s + took_s,
        prompt_tokens=1,
        output_tokens=1,
        predicted_output_tokens=1.0,
        predicted_s=None,
        deadline_at=None,
    )


def a_run(*results: WorkflowResult, preemptions: int = 0) -> Run:
    calls = [a_settlement(number, 1.0, 2.0) for number in range(len(results))]
    return Run(workflows=list(results), settled=calls, preemptions=preemptions)


def test_the_first_and_last_workflows_only_make_load() -> None:
    run = a_run(*[a_result(n, 100.0 if n in {0, 1, 8, 9} else 10.0) for n in range(10)])

    card = score(run, warm_share=0.2)

    assert card.latencies_s == (10.0,) * 6
    assert card.mean_s == 10.0
    assert card.calls == 10


def test_a_workflow_that_failed_took_for_ever() -> None:
    card = score(a_run(a_result(0, 10.0), a_result(1, None)), warm_share=0)

    assert card.latencies_s == (10.0, inf)
    assert card.failed_workflows == 1
    assert card.percentile_s(0.5) == 10.0
    assert card.percentile_s(0.95) == inf
    assert card.attainment(20.0) == 0.5


def test_on_time_is_by_each_workflows_own_deadline() -> None:
    card = score(
        a_run(
            a_result(0, 10.0, deadline_s=9.0),
            a_result(1, 10.0, deadline_s=11.0),
            a_result(2, 10.0),
            a_result(3, None),
        ),
        warm_share=0,
    )

    assert card.on_time == 0.5


def test_calls_are_timed_from_arrival_to_last_token() -> None:
    card = score(a_run(a_result(0, 3.0), a_result(1, 3.0), preemptions=1), warm_share=0)

    assert (card.mean_ttlt_s, card.ttlt_s_p95, card.mean_queue_s) == (3.0, 3.0, 1.0)
    assert card.preemptions_per_call == 0.5


def test_only_what_completes_while_load_lasts_counts_as_throughput() -> None:
    card = score(a_run(*[a_result(n, 2.0) for n in range(11)]), warm_share=0)

    assert card.completed_per_s == pytest.approx(9 / 10)


@pytest.mark.parametrize(("singles", "latencies"), [(True, (1.0,)), (False, (9.0,))])
def test_mixed_traffic_is_scored_apart(singles: bool, latencies: tuple[float, ...]) -> None:
    run = a_run(a_result(0, 9.0), a_result(1, 1.0, name=SINGLE))

    assert score(run, warm_share=0, singles=singles).latencies_s == latencies


def test_nothing_measured_is_no_success() -> None:
    card = score(Run())

    assert (card.mean_s, card.percentile_s(0.95), card.attainment(1.0)) == (inf, inf, 0.0)
    assert card.on_time == 0.0


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(
    values: list[int], hundredth: int
) -> None:
    ascending = sorted(values)

    found = percentile(ascending, hundredth / 100)

    assert found in ascending
    assert sum(value <= found for value in ascending) * 100 >= hundredth * len(ascending) - 1e-6


def test_a_ratio_is_paired_and_has_an_interval() -> None:
    mean, low, high = bootstrap_ratio([10.0, 200.0, 30.0], [5.0, 100.0, 10.0])

    assert mean == pytest.approx(7 / 3)
    assert 2.0 <= low <= mean <= high <= 3.0
    assert bootstrap_ratio([10.0, 200.0, 30.0], [5.0, 100.0, 10.0]) == (mean, low, high)
