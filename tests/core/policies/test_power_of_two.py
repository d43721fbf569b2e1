"""p2c: two by lot, the shorter queue wins."""

from collections import Counter
from math import inf

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies.power_of_two import PowerOfTwo
from tests.builders import a_backend, a_call


def loads(*busy: int) -> list[BackendLoad]:
    """Backends with so many calls each."""
    made = []
    for number, count in enumerate(busy):
        load = BackendLoad(a_backend(f"b{number}"))
        for call_number in range(count):
            call = a_call(f"r{number}-{call_number}")
            load.bind(call)
            load.start(call)
        made.append(load)
    return made


@pytest.mark.parametrize("count", [2, 3, 8])
def test_exactly_two_are_looked_at(count: int) -> None:
    for turn in range(50):
        scores = PowerOfTwo().scores(a_call(), loads(*range(count)), turn)
        drawn = [number for number, score in enumerate(scores) if score < inf]
        assert len(drawn) == 2
        assert [scores[number] for number in drawn] == drawn


def test_one_backend_needs_no_lot() -> None:
    assert PowerOfTwo().scores(a_call(), loads(3), turn=1) == [3.0]


def test_every_pair_is_drawn_equally_often() -> None:
    fleet = loads(0, 0, 0, 0)
    pairs: Counter[tuple[int, ...]] = Counter()
    for turn in range(3000):
        scores = PowerOfTwo().scores(a_call(), fleet, turn)
        pairs[tuple(number for number, score in enumerate(scores) if score < inf)] += 1

    assert len(pairs) == 6
    assert all(count == pytest.approx(500, rel=0.2) for count in pairs.values())


def test_another_seed_draws_others() -> None:
    fleet = loads(0, 0, 0, 0, 0)
    draws = [
        [PowerOfTwo(seed).scores(a_call(), fleet, turn) for turn in range(20)] for seed in (0, 1)
    ]

    assert draws[0] != draws[1]
