"""Cells: the same arrivals for everybody, and what each switch of a cell does."""

import pickle
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from gateway.core.policies import POLICIES
from gateway.core.types import Backend, BackendId
from gateway.sim.experiment import (
    Cell,
    Forecast,
    Workload,
    arrivals,
    capacity_per_s,
    fleet,
    measure,
    measure_all,
    measure_mixed,
    play,
)
from gateway.sim.simulator import Fault, FaultKind
from gateway.sim.trace import SINGLE
from tests.tuner.builders import a_trace

WORKLOAD = Workload.split("t", a_trace(40))
FLEET = fleet(("A100", "A6000"))


def a_cell(policy: str = "hexsage", rate_per_s: float = 1.0, count: int = 60) -> Cell:
    return Cell(
        workload=WORKLOAD,
        backends=FLEET,
        policy=policy,
        rate_per_s=rate_per_s,
        seed=3,
        count=count,
        deadline_s=30.0,
    )


def test_a_workload_is_cut_in_two_without_loss() -> None:
    both = [*WORKLOAD.seen, *WORKLOAD.held_out]

    assert len(WORKLOAD.seen) == len(WORKLOAD.held_out) == 20
    assert sorted(w.arrival_s or 0.0 for w in both) == [float(number) for number in range(40)]


def test_backends_are_named_by_gpu_and_number() -> None:
    assert [b.id for b in fleet(("A100", "L40S", "A100"))] == ["a100-0", "l40s-0", "a100-1"]


def test_arrivals_are_the_same_for_every_policy_and_another_for_every_seed() -> None:
    assert arrivals(a_cell("hexsage")) == arrivals(a_cell("hexgen"))
    assert arrivals(a_cell()) != arrivals(replace(a_cell(), seed=4))


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_spread_asked_for(cv: float) -> None:
    times = [arrival.at for arrival in arrivals(replace(a_cell(rate_per_s=2.0, count=5000), cv=cv))]
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]

    assert fmean(gaps) == pytest.approx(0.5, rel=0.15)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.15)


def test_a_cells_deadline_goes_before_the_traces() -> None:
    assert {a.deadline_s for a in arrivals(replace(a_cell(), deadline_s=5.0))} == {5.0}
    assert {a.deadline_s for a in arrivals(replace(a_cell(), deadline_s=None))} == {30.0}


def test_single_calls_arrive_beside_the_workflows() -> None:
    singles = tuple(a_trace(30, name=SINGLE))
    cell = replace(a_cell(rate_per_s=0.1), singles=singles, singles_per_s=0.4)

    coming = arrivals(cell)

    assert [a.at for a in coming] == sorted(a.at for a in coming)
    count = sum(arrival.workflow.name == SINGLE for arrival in coming)
    assert count == pytest.approx(4 * 60, rel=0.3)
    of_workflows, of_singles = measure_mixed(cell)
    assert measure(cell) == of_workflows
    assert of_singles.mean_s < of_workflows.mean_s


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_brings_every_workflow_home(policy: str) -> None:
    run = play(a_cell(policy))

    assert all(result.ended_at is not None for result in run.workflows)


def test_cells_travel_to_other_processes_and_give_the_same() -> None:
    cell = a_cell()

    assert measure_all([pickle.loads(pickle.dumps(cell))]) == [measure(cell)]


def test_load_one_is_what_the_fleet_completes() -> None:
    capacity = capacity_per_s(WORKLOAD, FLEET, count=100)
    double = capacity_per_s(WORKLOAD, (*FLEET, *_renamed()), count=200)

    assert double == pytest.approx(2 * capacity, rel=0.15)
    calm, drowned = measure(a_cell(rate_per_s=0.3 * capacity)), measure(a_cell(rate_per_s=9.0))
    assert calm.mean_s < drowned.mean_s / 2


def _renamed() -> tuple[Backend, ...]:
    return tuple(replace(backend, id=BackendId(f"{backend.id}b")) for backend in FLEET)


def test_engines_can_be_other_than_believed() -> None:
    fast = replace(FLEET[1].profile, prefill_s_per_token=1e-5, decode_base_s=0.001)

    there = measure(replace(a_cell(), engines=(fast, fast)))

    assert there.mean_s < measure(a_cell()).mean_s / 3


def test_a_wrong_belief_costs_less_where_profiles_are_learned() -> None:
    slow = replace(
        FLEET[0].profile,
        prefill_s_per_token=FLEET[0].profile.prefill_s_per_token * 4,
        decode_base_s=FLEET[0].profile.decode_base_s * 4,
    )
    wrong = replace(a_cell(rate_per_s=0.3, count=150), engines=(slow, FLEET[1].profile))

    learned, unlearned = measure_all([wrong, replace(wrong, learns_profiles=False)])
    assert learned.mean_s < 0.8 * unlearned.mean_s


def test_without_streams_nobody_hears_of_first_tokens() -> None:
    silent = play(replace(a_cell(), streams=False))

    assert {settled.first_token_at for settled in silent.settled} == {None}
    assert None not in {settled.first_token_at for settled in play(a_cell()).settled}


def test_faults_strike() -> None:
    fault = Fault(at=0.0, backend_id=FLEET[0].id, kind=FaultKind.FAIL)

    run = play(replace(a_cell(), faults=(fault,)))

    assert {settled.backend_id for settled in run.settled} == {FLEET[1].id}


@pytest.mark.parametrize("forecast", Forecast)
def test_whatever_is_foreseen_everything_comes_home(forecast: Forecast) -> None:
    assert measure(replace(a_cell(), forecast=forecast, forecast_factor=2.0)).failed_workflows == 0
