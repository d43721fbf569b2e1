"""Percentiles from buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.digest import Digest, quantile

SECONDS = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=200)


def a_digest(values: list[float]) -> Digest:
    digest = Digest()
    for value in values:
        digest.add(value)
    return digest


@given(SECONDS, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_off_by_a_twentieth_at_most(values: list[float], share: float) -> None:
    found = a_digest(values).quantile(share)
    rank = max(-(-len(values) * share // 1) - 1, 0)  # the smallest value with this share below it

    assert found == pytest.approx(sorted(values)[int(rank)], rel=0.05)


@given(SECONDS, SECONDS)
def test_digests_together_are_the_digest_of_all(first: list[float], second: list[float]) -> None:
    apart = quantile([a_digest(first), a_digest(second)], 0.95)

    assert apart == a_digest(first + second).quantile(0.95)


def test_nothing_has_no_quantile() -> None:
    assert Digest().quantile(0.5) is None
    assert quantile([], 0.5) is None


def test_no_time_at_all_is_a_time() -> None:
    assert a_digest([0.0]).quantile(0.5) == pytest.approx(1e-4, rel=0.05)
