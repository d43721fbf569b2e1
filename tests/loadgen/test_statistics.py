"""Tests of loadgen.statistics."""

from random import Random

import pytest

from loadgen.statistics import quantile_ratio, summary


def pairs(factor: float, noise: float, count: int = 200) -> list[tuple[float, float]]:
    """Workflows that differ from each other, and a little from one policy to the other."""
    rng = Random(9)
    common = [rng.lognormvariate(3, 0.5) for _ in range(count)]
    return [
        (one * factor * rng.lognormvariate(0, noise), one * rng.lognormvariate(0, noise))
        for one in common
    ]


def test_a_summary_has_mean_and_percentiles() -> None:
    latency = summary([float(number) for number in range(1, 102)])

    assert latency is not None
    assert (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s) == (51, 51, 96, 100)


def test_there_is_no_summary_of_nothing() -> None:
    assert summary([]) is None


def test_a_real_difference_is_significant() -> None:
    ratio = quantile_ratio(pairs(factor=2.0, noise=0.1), seed=1)

    assert ratio is not None
    assert ratio.low < 2 < ratio.high
    assert ratio.is_significant


def test_noise_is_not_significant() -> None:
    ratio = quantile_ratio(pairs(factor=1.0, noise=0.2), seed=1)

    assert ratio is not None
    assert not ratio.is_significant


def test_the_same_seed_gives_the_same_interval() -> None:
    assert quantile_ratio(pairs(1.3, 0.2), seed=1) == quantile_ratio(pairs(1.3, 0.2), seed=1)


def test_too_few_workflows_give_no_ratio() -> None:
    assert quantile_ratio(pairs(1.0, 0.1, 19), seed=1) is None
    assert quantile_ratio([], seed=1) is None


def test_medians_can_be_compared_as_well() -> None:
    ratio = quantile_ratio([(30.0, 10.0)] * 40, seed=1, share=0.5)

    assert ratio is not None
    assert ratio.value == pytest.approx(3)
