"""Runs planned, scorecards read."""

from gateway.cli.comparison import Plan, Variant, slowed, to_csv, truths
from gateway.cli.inputs import policy_of
from gateway.core.types import BackendId
from gateway.sim.experiment import Workload
from tests.builders import a_profile
from tests.tuner.builders import HETERO, a_card, a_trace


def a_plan(seeds: int = 2) -> Plan:
    return Plan(
        workload=Workload.split("t", a_trace()),
        variants=(
            Variant(label="as given", backends=HETERO),
            Variant(label="+L4", backends=HETERO),
        ),
        policies=(policy_of("edf"), policy_of("hexsage")),
        loads=(0.5, 1.0),
        capacity_per_s=2.0,
        seeds=seeds,
        count=10,
        cv=1.0,
    )


def test_every_policy_meets_the_same_arrivals() -> None:
    cells = a_plan().cells()

    assert len(cells) == 2 * 2 * 2 * 2
    assert {cell.seed for cell in cells} == {0, 1}
    assert {cell.rate_per_s for cell in cells} == {1.0, 2.0}
    assert all(cell.deadline_s is None for cell in cells)  # the trace has deadlines


def test_ratios_are_paired_by_seed() -> None:
    plan = a_plan()
    cards = [a_card(100), a_card(200), a_card(50), a_card(100)] * 2
    cards += [a_card(200), a_card(400), a_card(50), a_card(100)] * 2

    rows = plan.rows(cards)

    first, second, *_ = rows
    assert (first.policy, first.p95_lower_by) == ("edf", None)
    assert second.p95_lower_by is not None
    assert (second.p95_lower_by.low, second.p95_lower_by.high) == (2.0, 2.0)
    what_if = rows[4].what_if_p95
    assert what_if is not None
    assert what_if.mean == 2.0


def test_failures_leave_no_ratio() -> None:
    cards = [a_card(float("inf"))] * 16

    assert all(row.p95_lower_by is None for row in a_plan().rows(cards))


def test_csv_has_a_line_a_row() -> None:
    rows = a_plan().rows([a_card(1)] * 16)

    assert len(to_csv(rows).splitlines()) == 1 + len(rows)


def test_only_named_engines_are_other_than_believed() -> None:
    first, second = truths(HETERO, [(BackendId("a6000-0"), 2.0)])

    assert first == HETERO[0].profile
    assert second == slowed(HETERO[1].profile, 2.0)
    assert slowed(a_profile(), 2.0).decode_base_s == 0.2
