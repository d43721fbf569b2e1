"""Levels 4-5: similar prompts and repeats."""

import numpy as np
import pytest

from gateway.predictor.generation import Sample
from gateway.predictor.guess import Guess
from gateway.predictor.histograms import median
from gateway.predictor.history import Histories
from gateway.predictor.query import Level, Mass
from gateway.predictor.similar import Similar
from gateway.predictor.vectors import Vectors
from tests.predictor.builders import LetterEmbedder, a_ticket


def similar() -> Similar:
    """Return empty levels 4-5 that compare letters."""
    vectors = Vectors(LetterEmbedder())
    return Similar(vectors, Histories(vectors, 1000, 8, 10**9))


def learn(known: Similar, text: str, tokens: float, *, model: str = "m", cut: bool = False) -> bool:
    """Take in one answer, and do at once what is due; return whether something was."""
    ticket = a_ticket(text, model=model)
    known.embed([ticket])
    known.forecast(ticket)
    chore = known.learn(ticket, tokens, cut)
    if chore is not None:
        chore.run()
        chore.keep()
    return chore is not None


def answer(known: Similar, text: str, *, model: str = "m") -> tuple[Level | None, Mass]:
    """Return what levels 4-5 say of a prompt."""
    ticket = a_ticket(text, model=model)
    known.embed([ticket])
    level = known.forecast(ticket)
    assert ticket.similar_mass is not None
    return level, ticket.similar_mass


def test_with_nothing_to_go_by_there_is_no_answer() -> None:
    ticket = a_ticket("abc")
    known = similar()
    known.embed([ticket])
    assert known.forecast(ticket) is None


def test_similar_prompts_have_similar_answers() -> None:
    known = similar()
    rng = np.random.default_rng(1)
    for number in range(60):
        noise = "".join(rng.choice(list("uvwxyz"), 3))
        learn(known, ("aaabbb" if number % 2 else "mmmnnn") + noise, 900 if number % 2 else 20)

    level, long = answer(known, "aaabbbw")
    _, short = answer(known, "mmmnnnw")

    assert level is Level.SIMILAR
    assert median(long) > 500
    assert median(short) < 40


def test_a_repeat_is_answered_by_what_it_was_answered_before() -> None:
    known = similar()
    for number in range(40):
        learn(known, "abcdefgh"[number % 8] * 5 + "qqq", 100)
    learn(known, "zzzzz", 2000)

    level, mass = answer(known, "zzzzz")

    assert level is Level.REPEATS
    assert median(mass) == pytest.approx(2000, rel=0.2)


def test_a_repeat_that_was_cut_short_is_longer_than_that() -> None:
    known = similar()
    for number in range(40):
        learn(known, "abcdefgh"[number % 8] * 5 + "qqq", 100)
    for _ in range(3):
        learn(known, "zzzzz", 500, cut=True)
    _, mass = answer(known, "zzzzz")
    assert median(mass) > 480


def test_the_spread_between_repeats_is_learned() -> None:
    steady, fickle = similar(), similar()
    rng = np.random.default_rng(1)
    for _ in range(60):
        learn(steady, "zzzzz", 500)
        learn(fickle, "zzzzz", float(rng.choice((250, 1000))))
    alike, unlike = (max(answer(known, "zzzzz")[1]) for known in (steady, fickle))
    assert alike > unlike


def test_a_new_model_borrows_neighbours_from_others() -> None:
    known = similar()
    for _ in range(20):
        learn(known, "aaabbb", 900, model="old")
        learn(known, "mmmnnn", 20, model="old")
    _, long = answer(known, "aaabbc", model="new")
    _, short = answer(known, "mmmnno", model="new")
    assert median(long) > 5 * median(short)


def test_from_a_hundred_samples_on_lengths_are_guessed_too() -> None:
    known = similar()
    rng = np.random.default_rng(1)
    letters = list("abcdefghij")
    for _ in range(400):
        text = "".join(rng.choice(letters, 12))
        learn(known, text, 20 + 150 * text.count("a"))
    plain = [float(median(answer(known, "a" * n + "bcdefghijbcd"[n:])[1])) for n in (0, 2, 4)]
    assert plain == sorted(plain)
    assert plain[2] > 1.5 * plain[0]


def test_prompts_that_were_known_seldom_have_the_guess_fitted_anew() -> None:
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list("abcdefghij"), 12)) for _ in range(800)]
    new, old = similar(), similar()
    for text in texts[:150]:
        learn(new, text, 100)
        learn(old, text, 100)

    anew = sum(learn(new, text, 100) for text in texts[150:550])
    again = sum(learn(old, texts[number % 150], 100) for number in range(400))

    assert 0 < 2 * again <= anew


def test_however_far_guesses_are_apart_there_is_a_forecast() -> None:
    known = similar()
    (row,) = known.vectors.of([("s", "abcdef")])
    known.add("m", Sample(row, 900, is_cut=False, stage=7, guess=1.0))
    none = np.zeros(1, np.float32)
    model = known._models["m"]
    for apart in np.arange(0.0, 5.0, 0.05).tolist():
        model.fitted = Guess(np.zeros((1, len(row)), np.int8), none, none, 1.0 + apart)

        _, mass = answer(known, "abcdef")

        assert mass.sum() == pytest.approx(1.0)
