"""Gittins indices: against brute force and by hand."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.core.gittins import Cost, attention_cost, gittins_index
from gateway.core.lengths import PRIOR, LengthDistribution
from tests.core.test_lengths import distributions


def brute_force(lengths: LengthDistribution, cost: Cost, age: float, slices: int = 200) -> float:
    """Return min over d of E[min(C, d) - c(a) | C > c(a)] / P(C <= d | C > c(a)), by the letter.

    d runs over the costs of the buckets' ends; each bucket is cut into slices for the expectation.
    """
    outcomes: list[tuple[float, float]] = []
    for mass, low, high in zip(lengths.mass, lengths.edges, lengths.edges[1:], strict=False):
        start = max(low, age)
        if mass and high > age:
            width = (high - start) / slices
            part = mass * width / (high - low)
            outcomes += [(part, cost.of(start + width * (n + 0.5))) for n in range(slices)]
    alive = sum(part for part, _ in outcomes)
    attained = cost.of(age)
    ratios = []
    for end in lengths.edges:
        limit = cost.of(end)
        done = sum(part for part, cost in outcomes if cost <= limit)
        if end > age and done > 0:
            spent = sum(part * (min(cost, limit) - attained) for part, cost in outcomes)
            ratios.append((spent / alive) / (done / alive))
    return min(ratios)


SECONDS = Cost(linear=2.0)
"""Cost in proportion to length."""


def test_the_index_of_a_sure_answer_is_its_cost() -> None:
    index = gittins_index(LengthDistribution.point(100), attention_cost(40))

    assert index == pytest.approx(100**2 / 2 + 40 * 100, rel=0.02)


def test_serving_a_lottery_for_its_short_outcome() -> None:
    """Half the answers have about 5 tokens, half about 105; by hand, d = 10 is best."""
    lengths = LengthDistribution(mass=(0.5, 0.0, 0.5), edges=(0.0, 10.0, 100.0, 110.0))

    # E[min(C, 20)] = 0.5 x 10 + 0.5 x 20 = 15, P(C <= 20) = 0.5.
    assert gittins_index(lengths, SECONDS) == pytest.approx(30.0)


def test_once_the_short_outcome_is_out_of_the_question_the_long_one_counts() -> None:
    lengths = LengthDistribution(mass=(0.5, 0.0, 0.5), edges=(0.0, 10.0, 100.0, 110.0))

    # What is left of 105 tokens after 50.
    assert gittins_index(lengths, SECONDS, age_tokens=50) == pytest.approx(110.0)


def test_the_cost_an_answer_is_the_kv_its_tokens_read() -> None:
    cost = attention_cost(prompt_tokens=100)

    assert cost.of(0) == 0
    assert cost.of(10) == 10**2 / 2 + 100 * 10


def test_what_must_be_spent_before_the_first_token_counts_until_it_is() -> None:
    sure = LengthDistribution.point(100)

    assert gittins_index(sure, Cost(linear=1.0, fixed=7.0)) == pytest.approx(107, rel=0.02)
    assert gittins_index(sure, Cost(linear=1.0, fixed=7.0), 60) == pytest.approx(40, rel=0.02)


def test_a_spread_forecast_goes_before_a_sure_one_of_the_same_mean() -> None:
    spread = LengthDistribution.from_samples([10, 10, 10, 970])
    sure = LengthDistribution.point(spread.mean_tokens)

    assert gittins_index(spread, SECONDS) < gittins_index(sure, SECONDS)


@given(distributions(), st.sampled_from([30, 500, 5000]), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_the_index_is_that_of_brute_force(
    lengths: LengthDistribution, prompt_tokens: int, age: int
) -> None:
    assume(lengths.exceeds(age) > 1e-6)
    cost = attention_cost(prompt_tokens)

    exact = brute_force(lengths, cost, age, slices=20)

    # Within a bucket the middle's cost stands for all: wide buckets of short prompts err most.
    assert gittins_index(lengths, cost, age) == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize("age", [0, 100, 1000])
def test_of_a_smooth_forecast_the_index_is_close_to_exact(age: float) -> None:
    cost = attention_cost(500)

    exact = brute_force(PRIOR, cost, age)

    assert gittins_index(PRIOR, cost, age) == pytest.approx(exact, rel=0.01)


@given(distributions(), st.integers(0, 40_000))
@settings(max_examples=100, deadline=None)
def test_an_answer_that_outlived_its_forecast_still_has_an_index(
    lengths: LengthDistribution, age: int
) -> None:
    index = gittins_index(lengths, attention_cost(10), age)

    assert 0 < index < float("inf")
