"""Tests of loadgen.pairing."""

from loadgen.pairing import with_first
from loadgen.report import cells_of
from tests.loadgen.builders import a_run


def test_policies_are_compared_with_the_first_on_the_workflows_both_completed() -> None:
    slow = a_run([20.0] * 30, policy="slow")
    fast = a_run([10.0] * 29 + [None], policy="fast")
    (versus,) = with_first(cells_of([slow, fast], base_s=1.0, cut=0.0))

    assert (versus.policy, versus.baseline) == ("fast", "slow")
    assert versus.p95 is not None
    assert (versus.p95.value, versus.p95.low, versus.p95.high) == (2, 2, 2)
    assert versus.p50 == versus.p95


def test_each_rate_has_its_own_baseline() -> None:
    runs = [
        a_run([float(seconds)] * 30, policy=policy, qps=qps)
        for policy, qps, seconds in [("a", 1.0, 6), ("b", 1.0, 3), ("a", 2.0, 9), ("b", 2.0, 9)]
    ]
    ratios = [one.p95.value for one in with_first(cells_of(runs, base_s=1.0, cut=0.0)) if one.p95]

    assert ratios == [2, 1]


def test_few_workflows_give_no_ratio() -> None:
    runs = [a_run([1.0] * 5, policy=policy) for policy in ("a", "b")]

    (versus,) = with_first(cells_of(runs, base_s=1.0, cut=0.0))
    assert (versus.p50, versus.p95) == (None, None)
