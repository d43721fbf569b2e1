"""How much an earlier answer to a prompt tells of the next."""

import numpy as np
import pytest

from gateway.core.lengths import PRIOR
from gateway.predictor.constancy import (
    FIRST_CHANGE,
    FIRST_DOUBT,
    FIRST_SPREAD,
    Constancy,
)
from gateway.predictor.query import Again

PARENT = np.array(PRIOR.mass)


def taught(sd: float | None, count: int = 200, known: Constancy | None = None) -> Constancy:
    """Return what is known after so many answers whose log lengths stray by that from before.

    None: they have nothing to do with those before.
    """
    known = known or Constancy()
    rng = np.random.default_rng(4)
    for _ in range(count):
        usual = rng.normal(np.log(256), 1.2)
        again = Again(np.array([usual]), PARENT)
        log_tokens = rng.normal(np.log(256), 1.2) if sd is None else rng.normal(usual, sd)
        known.learn(again, float(np.exp(log_tokens)))
    return known


def test_at_first_it_believes_what_it_was_told() -> None:
    known = taught(0.01, FIRST_CHANGE - 1)
    assert (known.doubt, known.spread) == (FIRST_DOUBT, FIRST_SPREAD)


def test_answers_that_are_alike_leave_little_doubt() -> None:
    known = taught(0.05)
    assert known.doubt < FIRST_DOUBT
    assert known.spread < FIRST_SPREAD


def test_answers_that_have_nothing_to_do_with_each_other_leave_much() -> None:
    known = taught(None)
    assert known.doubt > FIRST_DOUBT


def test_it_changes_its_mind() -> None:
    known = taught(0.05, known=taught(None))
    for _ in range(2):
        taught(0.05, known=known)
    assert known.doubt < FIRST_DOUBT


@pytest.mark.parametrize("answers", [1, 5, 32])
def test_any_number_of_earlier_answers_will_do(answers: int) -> None:
    known = Constancy()
    for _ in range(FIRST_CHANGE):
        known.learn(Again(np.full(answers, np.log(300)), PARENT), 300.0)
    assert known.doubt < FIRST_DOUBT
