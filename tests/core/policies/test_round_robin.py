"""round_robin: turns, by weight if there are weights."""

from collections import Counter

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies.round_robin import RoundRobin
from tests.builders import a_backend, a_call


def picks(weights: list[float], turns: int) -> list[int]:
    """The backend chosen at each turn."""
    loads = [BackendLoad(a_backend(f"b{n}", weight=w)) for n, w in enumerate(weights)]
    chosen = []
    for turn in range(turns):
        scores = RoundRobin().scores(a_call(), loads, turn)
        assert sorted(scores) == [0.0] + [1.0] * (len(weights) - 1)
        chosen.append(scores.index(0.0))
    return chosen


def test_equal_backends_take_turns() -> None:
    assert picks([1, 1, 1], 7) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("weights", [[3.0, 1.0], [1.0, 2.0, 5.0], [0.0, 1.0]])
def test_turns_come_by_weight(weights: list[float]) -> None:
    counts = Counter(picks(weights, 800))

    for number, weight in enumerate(weights):
        assert counts[number] == pytest.approx(800 * weight / sum(weights), abs=5)


def test_turns_by_weight_are_spread_evenly() -> None:
    chosen = picks([3.0, 1.0], 400)

    for start in range(0, 400, 20):
        assert 3 <= chosen[start : start + 20].count(1) <= 7


def test_backends_that_all_weigh_nothing_take_turns() -> None:
    assert picks([0.0, 0.0], 4) == [0, 1, 0, 1]
