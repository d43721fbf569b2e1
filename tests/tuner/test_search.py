"""Which setting is better, and whether that is sure."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from gateway.core.policies import PolicySettings
from gateway.sim.experiment import Cell
from gateway.sim.scorecard import Scorecard
from gateway.sim.trace import SINGLE
from gateway.tuner.search import Objective, Search, candidates, cell_of, search
from tests.tuner.builders import HETERO, a_card, a_cell, a_trace, measured_by


def best_at_point_three(settings: PolicySettings) -> float:
    alpha = 0.5 if settings.alpha is None else settings.alpha
    return 100 * (1 + (alpha - 0.3) ** 2)


def test_a_clearly_wrong_alpha_gives_way_to_the_best() -> None:
    plan = Search(base=a_cell(settings=PolicySettings(alpha=0.9)))

    finding = search(plan, measured_by(best_at_point_three, noise=0.01))

    assert finding.winner == PolicySettings(alpha=0.3)
    assert finding.label == "alpha=0.3"
    assert finding.gain is not None
    assert finding.gain.low > 0.2
    assert finding.curve[0].settings == finding.present


def test_the_best_setting_is_left_alone() -> None:
    plan = Search(base=a_cell(settings=PolicySettings(alpha=0.3)))

    finding = search(plan, measured_by(best_at_point_three, noise=0.01))

    assert finding.winner is None


def test_a_gain_too_small_to_matter_is_left_alone_however_sure() -> None:
    plan = Search(base=a_cell(settings=PolicySettings(alpha=0.4)))

    finding = search(plan, measured_by(best_at_point_three))

    assert finding.winner is None


def test_noise_hardly_ever_wins() -> None:
    plans = [Search(base=a_cell(), first_seed=1000 * number) for number in range(60)]

    findings = [search(plan, measured_by(lambda _: 100.0, noise=0.1)) for plan in plans]

    assert sum(finding.winner is not None for finding in findings) <= 3
    assert any(finding.gain is not None for finding in findings)


def test_the_same_seed_finds_the_same() -> None:
    plan = Search(base=a_cell(settings=PolicySettings(alpha=0.6)))
    measure = measured_by(best_at_point_three, noise=0.05)

    assert search(plan, measure) == search(plan, measure)


@pytest.mark.parametrize(
    ("objective", "good", "bad"),
    [
        pytest.param(Objective.ATTAINMENT, a_card(50, 0.9), a_card(10, 0.5), id="attainment"),
        pytest.param(
            Objective.MEAN_TTLT,
            replace(a_card(50), mean_ttlt_s=3.0),
            replace(a_card(10), mean_ttlt_s=5.0),
            id="mean ttlt",
        ),
        pytest.param(Objective.P95, a_card(10, 0.5), a_card(50, 0.9), id="p95"),
        pytest.param(Objective.P95, a_card(10), a_card(inf), id="nothing failed"),
    ],
)
def test_the_objective_decides_what_is_better(
    objective: Objective, good: Scorecard, bad: Scorecard
) -> None:
    def measure(cells: Sequence[Cell]) -> list[Scorecard]:
        return [good if cell.settings.alpha == 0.2 else bad for cell in cells]

    finding = search(Search(base=a_cell(), objective=objective), measure)

    assert finding.label == "alpha=0.2"
    assert finding.winner is not None


@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        ("hexgen", {f"alpha={n / 10:g}" for n in range(10)} - {"alpha=0.5"}),
        ("hexsage", {"alpha=0.3", "alpha=0.5", "hold=1.5", "hold=4", "kappa=50", "kappa=800"}),
        ("least_backlog+fcfs", set()),
        ("sagesched", set()),
    ],
)
def test_only_knobs_that_the_policy_reads_are_tried(policy: str, labels: set[str]) -> None:
    assert {label for label, _ in candidates(policy, PolicySettings())} == labels


def test_recorded_traffic_is_played_at_the_rate_at_which_it_came() -> None:
    cell = cell_of(a_trace(count=80, gap_s=2.5), HETERO, "hexgen", PolicySettings())

    assert cell.rate_per_s == pytest.approx(0.4)
    assert cell.cv == pytest.approx(0.3)  # even gaps; the least that is played
    assert cell.deadline_s is None  # each has its own
    assert len(cell.workload.seen) == len(cell.workload.held_out) == 40


def test_single_calls_are_played_beside_the_workflows() -> None:
    mixed = [*a_trace(count=50, gap_s=2.0), *a_trace(count=100, gap_s=1.0, name=SINGLE)]

    cell = cell_of(mixed, HETERO, "hexsage", PolicySettings())

    assert len(cell.singles) == 100
    assert cell.singles_per_s == pytest.approx(1.0)


def test_single_calls_alone_are_traffic_too() -> None:
    cell = cell_of(a_trace(count=50, name=SINGLE), HETERO, "hexsage", PolicySettings())

    assert cell.rate_per_s == pytest.approx(1.0)
    assert not cell.singles


@pytest.mark.parametrize(
    ("count", "gap_s", "complaint"),
    [
        pytest.param(10, 1.0, "too little traffic: 10 of 40", id="too little"),
        pytest.param(50, 0.0, "one instant", id="no rate"),
    ],
)
def test_traffic_that_says_too_little_is_refused(count: int, gap_s: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cell_of(a_trace(count=count, gap_s=gap_s), HETERO, "hexgen", PolicySettings())


def test_a_trace_without_arrivals_is_refused() -> None:
    bare = [replace(workflow, arrival_s=None) for workflow in a_trace()]

    with pytest.raises(ValueError, match="no arrival times"):
        cell_of(bare, HETERO, "hexgen", PolicySettings())
