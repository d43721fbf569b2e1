"""Levels 0-3: prior, all traffic, model, stage and input length."""

import pytest

from gateway.core.lengths import PRIOR
from gateway.predictor import levels
from gateway.predictor.histograms import median
from gateway.predictor.levels import Levels
from gateway.predictor.query import Level


def taught(*calls: tuple[str, str, int, float], times: int = 30) -> Levels:
    """Return levels that saw calls of (model, stage, input, output) end, each so many times."""
    known = Levels()
    for _ in range(times):
        for model, stage, prompt_tokens, tokens in calls:
            known.add(model, stage, prompt_tokens, tokens, False, 1.0)
    return known


def test_before_anything_is_seen_the_prior_answers() -> None:
    answer = Levels().answer("m", "s", 100)
    assert answer.level is Level.PRIOR
    assert answer.mass == pytest.approx(PRIOR.mass, abs=0.01)


def test_each_level_answers_where_it_is_the_narrowest_known() -> None:
    known = taught(("m", "s", 100, 50))
    assert known.answer("other", "s", 100).level is Level.GLOBAL
    assert known.answer("m", "other", 100).level is Level.MODEL
    assert known.answer("m", "s", 100).level is Level.STAGE


def test_a_stage_tells_its_length_from_its_neighbours() -> None:
    known = taught(("m", "short", 100, 20), ("m", "long", 100, 900))
    assert median(known.answer("m", "short", 100).mass) < 40
    assert median(known.answer("m", "long", 100).mass) > 600


def test_within_a_stage_the_input_length_tells_more() -> None:
    known = taught(("m", "s", 100, 20), ("m", "s", 4000, 900))
    assert median(known.answer("m", "s", 105).mass) < 40
    assert median(known.answer("m", "s", 3900).mass) > 600


def test_of_an_input_length_never_seen_the_whole_stage_answers() -> None:
    known = taught(("m", "s", 100, 20), ("m", "s", 4000, 900))
    mass = known.answer("m", "s", 200_000).mass
    assert mass[:10].sum() == pytest.approx(0.5, abs=0.1)


def test_a_new_model_borrows_and_scales_by_what_little_it_has_shown() -> None:
    known = taught(("a", "s", 100, 100), ("b", "s", 100, 200))
    for _ in range(8):
        known.add("new", "other", 100, 1200, False, 1.0)
    assert median(known.answer("unseen", "s", 100).mass) < 300
    assert median(known.answer("new", "s", 100).mass) > 500


def test_a_new_model_borrows_of_one_that_nobody_has_asked_for_yet() -> None:
    known = Levels()  # as after a restart, from what the journal holds
    for _ in range(200):
        known.add("a", "s", 100, 1500, False, 1.0)
    assert median(known.answer("new", "s", 100).mass) > 1000


def test_capped_answers_are_not_taken_for_short_ones() -> None:
    known = Levels()
    for _ in range(50):
        known.add("m", "s", 100, 128, True, 1.0)
        known.add("m", "s", 100, 900, False, 1.0)
    assert median(known.answer("m", "s", 100).mass) > 600


def test_old_samples_fade() -> None:
    known = taught(("m", "s", 100, 20), times=3000)
    for _ in range(6000):
        known.add("m", "t", 100, 900, False, 1.0)
    assert known.answer("m", "unseen", 100).mass[:10].sum() < 0.1


def test_stages_and_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "MAX_STAGES", 5)
    monkeypatch.setattr(levels, "MAX_MODELS", 3)
    known = Levels()
    for number in range(100):
        known.add(f"m{number}", "s", 100, 50, False, 1.0)
    assert known.answer("m99", "s", 100).level is Level.STAGE
    assert known.answer("m0", "s", 100).level is Level.GLOBAL
    assert known.nbytes < 25_000


def test_a_ring_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "RING_LIMIT", 64)
    known = taught(("m", "s", 100, 20), times=500)
    for _ in range(64):
        known.add("m", "s", 100, 900, False, 1.0)
    stage = known.stage("m", "s")
    assert stage is not None
    assert stage.samples == 64
    assert stage.spread_tokens() == (900.0, 0.0)
