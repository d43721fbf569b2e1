"""Levels 4-5 as a whole: answer, learn, judge, remember."""

from pathlib import Path

import numpy as np
import pytest

from gateway.core.lengths import log_normal
from gateway.predictor.history import Histories
from gateway.predictor.journal import Journal
from gateway.predictor.learner import SHADOW_EVERY, Learner
from gateway.predictor.query import Ended, Level, Ticket
from gateway.predictor.similar import Similar
from gateway.predictor.vectors import Vectors
from tests.predictor.builders import LetterEmbedder, a_ticket


def a_learner(path: Path | None = None) -> Learner:
    """Return a learner that compares letters, with a journal if there is a path."""
    vectors = Vectors(LetterEmbedder())
    journal = None
    if path is not None:
        journal = Journal(path, vectors.name, vectors.dim, 1000)
        journal.open()
    return Learner(Similar(vectors, Histories(vectors, 1000, 8, 10**9)), journal)


def learn(learner: Learner, ticket: Ticket, tokens: float) -> None:
    """Answer a ticket, deliver the answer to it, and take in its outcome."""
    (answer,) = learner.answer([ticket])
    if answer is not None:
        ticket.mass, ticket.level = answer
    chore = learner.learn(ticket, tokens, Ended.FINISHED)
    if chore is not None:
        chore.run()
        chore.keep()


def test_a_batch_is_answered_ticket_by_ticket() -> None:
    learner = a_learner()
    for _ in range(10):
        learn(learner, a_ticket("aaa"), 900)
        learn(learner, a_ticket("mmm"), 20)
    answers = learner.answer([a_ticket("aaa"), a_ticket("mmm"), a_ticket("qqq", stage="other")])
    assert [answer and answer[1] for answer in answers] == [
        Level.REPEATS,
        Level.REPEATS,
        Level.SIMILAR,
    ]
    assert learner.seconds()[0] > 0


def test_an_outcome_nobody_asked_about_is_learned_all_the_same() -> None:
    learner = a_learner()
    learner.learn(a_ticket("aaa"), 900, Ended.FINISHED)
    assert learner.history_sizes() == {"m": 1}


def test_every_model_and_its_busy_stages_are_judged() -> None:
    learner = a_learner()
    for number in range(100):
        learn(learner, a_ticket("abc", stage=f"s{number % 2}"), 100)
    assert set(learner.calibration()) == {"m", "m s0", "m s1"}
    assert learner.calibration()["m"]["samples"] == 100


def test_when_it_does_not_pay_it_is_asked_now_and_then_only() -> None:
    learner = a_learner()
    rng = np.random.default_rng(1)
    for number in range(700):
        ticket = a_ticket("abcdefgh"[number % 8] * 5)
        # The truth itself: what a few answers to the same prompt say can only be worse.
        ticket.stage_mass = np.array(log_normal(300, 1.0).mass)
        learn(learner, ticket, float(rng.lognormal(np.log(300), 1.0)))
    assert learner.calibration()["m"]["is_bypassed"] == 1.0

    tickets = [a_ticket("abcde") for _ in range(4 * SHADOW_EVERY)]
    assert learner.answer(tickets) == [None] * len(tickets)
    assert sum(ticket.similar_mass is not None for ticket in tickets) == 4


def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    first = a_learner(tmp_path / "journal")
    for number in range(30):
        learn(first, a_ticket("aaabbb" if number % 2 else "mmmnnn"), 900 if number % 2 else 20)
    first.close()

    second = a_learner(tmp_path / "journal")
    second.begin_restore()
    while second.restore_one()[0]:
        pass

    assert second.history_sizes() == {"m": 30}
    (answer,) = second.answer([a_ticket("aaabbb")])
    assert answer is not None
    assert answer[1] is Level.REPEATS
    second.close()


def test_no_text_reaches_the_disk(tmp_path: Path) -> None:
    learner = a_learner(tmp_path / "journal")
    learn(learner, a_ticket("averysecretprompt"), 10)
    learner.close()
    assert b"secret" not in (tmp_path / "journal").read_bytes()


def test_memory_is_counted() -> None:
    learner = a_learner()
    before = learner.nbytes
    for number in range(200):
        learn(learner, a_ticket(f"{number}abc"), 10)
    assert learner.nbytes > before + 200 * learner._similar.vectors.dim
    assert learner.nbytes == pytest.approx(before, abs=5_000_000)
