"""The monitor of the forecasts, and what it does about bad ones."""

import numpy as np
import pytest

from gateway.core.lengths import PRIOR, log_normal
from gateway.predictor.calibration import Average, Fading, Monitor
from gateway.predictor.outcome import Outcome
from gateway.predictor.query import Ended, Level, Mass

PRIOR_MASS = np.array(PRIOR.mass)


def fed(
    mass: Mass,
    lengths: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    *,
    similar: Mass | None = None,
    level: Level = Level.SIMILAR,
    ended: Ended = Ended.FINISHED,
    monitor: Monitor | None = None,
) -> Monitor:
    """Return a monitor that saw these lengths under one forecast."""
    monitor = monitor or Monitor()
    rng = np.random.default_rng(5)
    for tokens in lengths:
        outcome = Outcome(
            mass=mass,
            stage_mass=PRIOR_MASS,
            similar_mass=similar,
            level=level,
            tokens=float(tokens),
            ended=ended,
        )
        monitor.add(outcome, rng.random())
    return monitor


def draws(median: float, sd: float, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return log-normal lengths."""
    return np.exp(np.random.default_rng(2).normal(np.log(median), sd, count))


def test_honest_forecasts_cover_what_they_claim() -> None:
    numbers = fed(PRIOR_MASS, draws(256, 1.2, 1000)).numbers()
    assert numbers["cover_50"] == pytest.approx(0.5, abs=0.06)
    assert numbers["cover_80"] == pytest.approx(0.8, abs=0.05)
    assert numbers["cover_95"] == pytest.approx(0.95, abs=0.03)
    assert numbers["exponent"] == pytest.approx(1.0, abs=0.06)
    assert numbers["pit_distance"] is not None
    assert numbers["pit_distance"] < 0.08


def test_forecasts_too_sure_of_themselves_are_widened() -> None:
    narrow = np.array(log_normal(256, 0.3).mass)
    assert fed(narrow, draws(256, 1.2, 1500)).exponent < 0.8


def test_forecasts_too_wide_are_narrowed() -> None:
    assert fed(PRIOR_MASS, draws(256, 0.2, 1500)).exponent > 1.2


def test_only_levels_four_and_five_are_tempered() -> None:
    assert fed(PRIOR_MASS, draws(256, 0.2, 1500), level=Level.STAGE).exponent == 1.0


def test_similar_prompts_that_mislead_are_bypassed_until_they_pay_again() -> None:
    wrong, right = (np.array(log_normal(median, 0.4).mass) for median in (3000, 256))
    lengths = draws(256, 0.5, 700)

    monitor = fed(PRIOR_MASS, lengths, similar=wrong)
    assert monitor.is_bypassed
    assert monitor.skill() is not None
    assert fed(PRIOR_MASS, np.tile(lengths, 5), similar=right, monitor=monitor).is_bypassed is False


def test_cut_answers_are_no_proof_of_bad_forecasts() -> None:
    cut = np.minimum(draws(256, 1.2, 1500), 200.0)
    numbers = fed(PRIOR_MASS, cut[cut == 200.0], ended=Ended.CAPPED).numbers()
    assert numbers["share_capped"] == 1.0
    assert numbers["pinball_50_tokens"] is None


def test_the_rank_correlation_is_of_what_was_forecast() -> None:
    monitor = Monitor()
    for median in draws(300, 1.0, 100):
        mass = np.array(log_normal(float(median), 0.3).mass)
        fed(mass, np.array([median]), monitor=monitor)
    assert (monitor.numbers()["rank_correlation"] or 0) > 0.98


def test_before_anything_is_seen_there_are_no_numbers() -> None:
    numbers = Monitor().numbers()
    assert numbers["samples"] == 0
    assert numbers["cover_80"] is None
    assert numbers["pit_distance"] is None


def test_an_average_forgets() -> None:
    average = Average(half_life=10)
    assert average.mean is None
    for value in [1.0] * 100 + [0.0] * 10:
        average.add(value)
    assert average.mean == pytest.approx(0.5, abs=0.01)


def test_sums_forget_at_their_half_life_however_long_they_are_kept() -> None:
    sums = Fading(2, half_life=10)
    for step in range(1000):  # past the number where they are brought down again
        unit = sums.step()
        sums.sums[0] += unit
        sums.sums[1] += unit * (step < 990)
    seen, early = sums.sums
    assert early / seen == pytest.approx(0.5, abs=0.01)
    assert seen < 1e12
