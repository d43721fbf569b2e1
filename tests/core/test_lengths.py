"""LengthDistribution: against arithmetic, and against sampling."""

from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gateway.core.lengths import (
    EDGES,
    PRIOR,
    LengthDistribution,
    bucket_of,
    geometric_edges,
    log_normal,
)

TWO = LengthDistribution(mass=(0.25, 0.75), edges=(0.0, 10.0, 30.0))
"""A quarter of the answers spread over 0..10 tokens, the rest over 10..30."""


@st.composite
def distributions(draw: st.DrawFn) -> LengthDistribution:
    """Any distribution on a few buckets, or on the shared ones."""
    if draw(st.booleans()):
        return LengthDistribution.from_samples(
            draw(st.lists(st.integers(1, 20_000), min_size=1, max_size=30))
        )
    weights = draw(st.lists(st.integers(0, 50), min_size=1, max_size=6))
    assume(sum(weights))
    widths = draw(st.lists(st.integers(1, 500), min_size=len(weights), max_size=len(weights)))
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width)
    return LengthDistribution(
        mass=tuple(weight / sum(weights) for weight in weights), edges=tuple(edges)
    )


def sampled(lengths: LengthDistribution, count: int = 20_000) -> list[float]:
    """Draw answers as the distribution says they are."""
    rng = Random(7)
    buckets = rng.choices(range(len(lengths.mass)), weights=lengths.mass, k=count)
    return [rng.uniform(lengths.edges[b], lengths.edges[b + 1]) for b in buckets]


# By hand


def test_the_mean_is_that_of_evenly_filled_buckets() -> None:
    assert TWO.mean_tokens == 0.25 * 5 + 0.75 * 20


@pytest.mark.parametrize(
    ("tokens", "probability"),
    [(-1, 1.0), (0, 1.0), (5, 0.875), (10, 0.75), (20, 0.375), (30, 0.0), (99, 0.0)],
)
def test_the_chance_to_exceed_a_length(tokens: float, probability: float) -> None:
    assert TWO.exceeds(tokens) == pytest.approx(probability)


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.0, 0.0), (0.125, 5.0), (0.25, 10.0), (0.625, 20.0), (1.0, 30.0)]
)
def test_quantiles(share: float, tokens: float) -> None:
    assert TWO.quantile(share) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("age", "remaining"),
    [
        pytest.param(0, 16.25, id="nothing is out yet: the mean"),
        pytest.param(10, 10.0, id="alive after the first bucket: half of the second"),
        pytest.param(20, 5.0, id="in the middle of the second"),
        pytest.param(5, (0.125 * 2.5 + 0.75 * 15) / 0.875, id="in the middle of the first"),
    ],
)
def test_what_is_left_of_an_answer_that_has_come_so_far(age: float, remaining: float) -> None:
    assert TWO.remaining_mean(age) == pytest.approx(remaining)


def test_an_answer_that_outlived_its_forecast_is_expected_to_go_on_a_little() -> None:
    assert TWO.remaining_mean(30) == pytest.approx(5.4)
    assert TWO.remaining_mean(1000) == pytest.approx(180)
    assert LengthDistribution.point(2).remaining_mean(3) == 1.0


def test_a_cap_gathers_what_is_above_it() -> None:
    capped = TWO.capped(20)

    assert capped.edges[-1] == 20
    assert capped.exceeds(19) == pytest.approx(0.375 + 0.375 * 0.5 / 9.5, abs=0.03)
    assert capped.exceeds(10) == pytest.approx(0.75)
    # 10..20 holds 0.375 as before, 20 holds the other 0.375.
    assert capped.mean_tokens == pytest.approx(0.25 * 5 + 0.375 * 15 + 0.375 * 20, abs=0.3)


def test_a_cap_above_everything_changes_nothing() -> None:
    assert TWO.capped(30) is TWO
    assert TWO.capped(10_000) is TWO


def test_a_sure_length_is_sure() -> None:
    sure = LengthDistribution.point(100)

    assert sure.mean_tokens == 100
    assert sure.exceeds(99) == 1.0
    assert sure.exceeds(101) == 0.0
    assert 99.5 <= sure.quantile(0.0) <= sure.quantile(1.0) <= 100.5


def test_no_answer_is_shorter_than_a_token() -> None:
    assert LengthDistribution.point(0).mean_tokens == 1


def test_the_shared_edges_are_whole_numbers_that_rise() -> None:
    assert EDGES[0] == 0
    assert EDGES[1] == 8
    assert EDGES[-1] == 16384
    assert len(EDGES) == 49
    assert all(edge == int(edge) for edge in EDGES)
    assert list(EDGES) == sorted(set(EDGES))


def test_edges_that_would_fall_together_are_kept_apart() -> None:
    assert geometric_edges(1, 4, 8) == (0, 1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (1, 0), (8, 0), (9, 1), (10**6, 47)])
def test_a_length_belongs_to_the_bucket_whose_upper_edge_it_does_not_exceed(
    tokens: float, bucket: int
) -> None:
    assert bucket_of(tokens) == bucket


def test_the_prior_has_its_median_where_it_says() -> None:
    assert PRIOR.quantile(0.5) == pytest.approx(256, rel=0.1)
    assert log_normal(50, 0.5).quantile(0.5) == pytest.approx(50, rel=0.1)
    # One standard deviation up is a factor of e^1.2.
    assert PRIOR.quantile(0.8413) == pytest.approx(256 * 3.32, rel=0.1)


@pytest.mark.parametrize(
    ("mass", "edges"),
    [
        pytest.param((1.0,), (0.0, 1.0, 2.0), id="an edge too many"),
        pytest.param((0.5,), (0.0, 1.0), id="half is missing"),
        pytest.param((1.5, -0.5), (0.0, 1.0, 2.0), id="less than nothing"),
        pytest.param((), (0.0,), id="nothing at all"),
    ],
)
def test_what_is_no_distribution_is_refused(
    mass: tuple[float, ...], edges: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match="mass"):
        LengthDistribution(mass=mass, edges=edges)


# By sampling


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(TWO, id="two buckets"),
        pytest.param(PRIOR, id="the prior"),
        pytest.param(LengthDistribution.from_samples([3, 40, 41, 900]), id="an empirical one"),
    ],
)
def test_everything_agrees_with_sampling(lengths: LengthDistribution) -> None:
    answers = sampled(lengths)
    mean = sum(answers) / len(answers)
    assert lengths.mean_tokens == pytest.approx(mean, rel=0.03)
    for share in (0.1, 0.5, 0.9):
        age = lengths.quantile(share)
        longer = [answer for answer in answers if answer > age]
        assert len(longer) / len(answers) == pytest.approx(1 - share, abs=0.015)
        assert lengths.exceeds(age) == pytest.approx(1 - share, abs=1e-6)
        left = sum(longer) / len(longer) - age
        assert lengths.remaining_mean(age) == pytest.approx(left, rel=0.05)
        cap = max(int(age), 1)
        capped_mean = sum(min(answer, cap) for answer in answers) / len(answers)
        assert lengths.capped(cap).mean_tokens == pytest.approx(capped_mean, rel=0.04, abs=0.5)


# Whatever the distribution


@given(distributions(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_quantiles_rise_and_undo_the_chance_to_exceed(
    lengths: LengthDistribution, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    assert 0 <= lengths.quantile(low) <= lengths.quantile(high) <= lengths.edges[-1]
    assert lengths.exceeds(lengths.quantile(high)) <= 1 - high + 1e-6


@given(distributions(), st.floats(0, 20_000), st.floats(0, 20_000))
@settings(max_examples=200, deadline=None)
def test_the_chance_to_exceed_falls_from_1_to_0(
    lengths: LengthDistribution, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    assert 0 <= lengths.exceeds(high) <= lengths.exceeds(low) <= 1


@given(distributions(), st.integers(0, 25_000))
@settings(max_examples=300, deadline=None)
@example(LengthDistribution.from_samples([8] * 3 + [9] * 7), 8)
def test_a_capped_distribution_never_exceeds_its_cap(lengths: LengthDistribution, cap: int) -> None:
    capped = lengths.capped(cap)

    assert capped.exceeds(max(cap, 1)) == 0 or lengths.edges[-1] <= cap
    assert capped.mean_tokens <= lengths.mean_tokens + 0.5
    assert sum(capped.mass) == pytest.approx(1)


@given(distributions(), st.floats(0, 20_000))
@settings(max_examples=200, deadline=None)
def test_something_is_always_left(lengths: LengthDistribution, age: float) -> None:
    assert lengths.remaining_mean(age) > 0
