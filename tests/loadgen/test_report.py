"""Tests of loadgen.report: arithmetic on records written by hand."""

import pytest

from loadgen.records import Run
from loadgen.report import Cell, cells_of, slowest, warnings_of
from tests.loadgen.builders import a_call_record, a_run, a_workflow_record


def the_cell(*runs: Run, base_s: float = 1.0, cut: float = 0.0) -> Cell:
    (cell,) = cells_of(runs, base_s=base_s, cut=cut)
    return cell


def test_the_ends_of_a_run_are_cut_by_arrival() -> None:
    cell = the_cell(a_run([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 100.0]), cut=0.15)

    assert [one.latency_s for one in cell.measured] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert cell.workflow is not None
    assert cell.workflow.p50_s == 4.5
    assert cell.workflow.mean_s == 4.5


def test_a_failed_workflow_is_late_at_every_scale_and_has_no_latency() -> None:
    cell = the_cell(a_run([1.0, 2.5, None, 4.5]))

    assert cell.attainment[1.5] == 0.25
    assert cell.attainment[3.0] == 0.5
    assert cell.attainment[8.0] == 0.75
    assert cell.measured[2].latency_s is None
    assert cell.workflow is not None
    assert cell.workflow.mean_s == pytest.approx(8 / 3)
    assert cell.failures == {"connect": 1}


def test_attainment_of_the_announced_deadline_uses_each_workflows_own() -> None:
    run = Run(policy="p", qps=1.0, seed=1, plan="", planned=2)
    run.workflows += [
        a_workflow_record(0, latency_s=5.0, deadline_s=6.0),
        a_workflow_record(1, arrival_s=1.0, latency_s=5.0, deadline_s=4.0),
    ]

    assert the_cell(run).deadline_attainment == 0.5


def test_throughput_is_of_the_whole_run_down_to_its_last_answer() -> None:
    # Arrivals at 0, 1, ... 9; the last answer comes at 20.
    cell = the_cell(a_run([1.0] * 9 + [11.0]), cut=0.2)

    assert cell.duration_s == 20
    assert cell.throughput_per_s == pytest.approx(10 / 20)
    assert cell.calls_per_s == pytest.approx(10 / 20)
    assert cell.output_tokens_per_s == pytest.approx(100 / 20)


def test_goodput_is_what_arrived_in_the_middle_and_was_on_time() -> None:
    # Deadlines are 10 s. Of the arrivals at 2, 3, ... 7 one is late, one fails.
    cell = the_cell(a_run([1.0, 1.0, 1.0, 11.0, 1.0, None, 1.0, 1.0, 1.0, 1.0]), cut=0.2)

    assert cell.arrived_in_s == pytest.approx(6)
    assert cell.goodput_per_s == pytest.approx(4 / 6)
    assert cell.throughput_per_s == pytest.approx(9 / 14)


def test_streams_give_time_to_first_token_and_per_token() -> None:
    run = a_run([1.0])
    run.calls = [a_call_record(latency_s=5.0, ttft_s=1.0, output_tokens=5)]
    cell = the_cell(run)

    assert cell.ttft is not None
    assert cell.tpot is not None
    assert (cell.ttft.mean_s, cell.tpot.mean_s) == (1.0, 1.0)


def test_without_streams_there_is_no_time_to_first_token() -> None:
    cell = the_cell(a_run([1.0]))

    assert cell.ttft is None
    assert cell.tpot is None
    assert cell.ttlt is not None


def test_stages_are_ordered_by_the_time_they_take_in_all() -> None:
    run = a_run([1.0])
    run.calls = [
        a_call_record(stage="short", latency_s=2.0),
        a_call_record(stage="long", latency_s=1.5),
        a_call_record(stage="long", latency_s=2.5),
    ]
    stages = the_cell(run).stages

    assert [(one.stage, one.calls, one.latency.mean_s) for one in stages] == [
        ("long", 2, 2.0),
        ("short", 1, 2.0),
    ]


def test_the_generators_lateness_counts_once_a_step_by_its_latest_call() -> None:
    run = a_run([10.0])
    run.calls = [
        a_call_record(step=0, lag_s=0.1),
        a_call_record(step=0, lag_s=0.3),
        a_call_record(step=1, lag_s=0.2),
    ]
    cell = the_cell(run)

    assert cell.lag_share == pytest.approx(0.05)
    assert any("5.0% of workflow latency" in warning for warning in warnings_of([cell]))


def test_a_clean_run_warns_of_nothing() -> None:
    assert warnings_of([the_cell(a_run([1.0, 2.0]))]) == []


def test_interruptions_failures_and_other_token_counts_are_said() -> None:
    run = a_run([1.0, None])
    run.planned = 3
    run.calls[0] = a_call_record(output_tokens=10)
    odd = the_cell(run)
    texts = " ".join(warnings_of([odd]))

    assert "interrupted" in texts
    assert "1 x connect" in texts


def test_seeds_of_a_cell_are_pooled() -> None:
    cell = the_cell(a_run([1.0, 2.0], seed=1), a_run([3.0, 4.0], seed=2))

    assert cell.seeds == (1, 2)
    assert cell.planned == 4
    assert cell.arrived_in_s == 2 + 2
    assert cell.duration_s == 3 + 5
    assert [(one.seed, one.index, one.latency_s) for one in cell.measured] == [
        (1, 0, 1.0),
        (1, 1, 2.0),
        (2, 0, 3.0),
        (2, 1, 4.0),
    ]


def test_cells_come_rate_by_rate_in_the_order_of_the_policies() -> None:
    runs = [
        a_run([1.0], policy=policy, qps=qps)
        for policy, qps in [("a", 1.0), ("b", 1.0), ("b", 2.0), ("a", 2.0)]
    ]

    assert [(cell.qps, cell.policy) for cell in cells_of(runs, base_s=1.0, cut=0.0)] == [
        (1.0, "a"),
        (1.0, "b"),
        (2.0, "a"),
        (2.0, "b"),
    ]


def test_the_slowest_workflow_is_the_baselines_and_is_shown_under_every_policy() -> None:
    runs = [
        a_run([1.0, 9.0, 2.0], policy="a", qps=1.0),
        a_run([1.0, 2.0, 3.0], policy="b", qps=2.0),
        a_run([1.0, 2.0, 8.0], policy="a", qps=2.0),
    ]
    timelines = slowest(runs, cut=0.0)

    assert [(one.policy, one.workflow.index, one.workflow.latency_s) for one in timelines] == [
        ("a", 2, 8.0),
        ("b", 2, 3.0),
    ]
    assert all(len(one.calls) == 1 for one in timelines)


def test_a_replay_has_the_rate_that_was_measured() -> None:
    assert the_cell(a_run([1.0] * 11, qps=None)).rate_per_s == pytest.approx(1)
