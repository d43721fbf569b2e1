"""What is answered: of one choice or several, below the cap."""

from dataclasses import replace

import numpy as np
import pytest

from gateway.predictor.prediction import Prediction
from gateway.predictor.query import Level
from tests.predictor.builders import a_ticket


def a_prediction(*, n: int = 1, max_tokens: int | None = None) -> Prediction:
    """Return an even forecast for so many choices."""
    ticket = a_ticket()
    ticket.query = replace(ticket.query, n=n, max_tokens=max_tokens)
    mass = np.full(48, 1 / 48)
    return Prediction(mass=mass, level=Level.STAGE, asks_more=False, ticket=ticket)


def test_a_call_ends_with_the_longest_of_its_choices() -> None:
    one, three = a_prediction(), a_prediction(n=3)
    longest = 1 - (1 - one.output.exceeds(1000)) ** 3
    assert three.output.exceeds(1000) == pytest.approx(longest, abs=0.02)
    assert three.work_tokens == pytest.approx(3 * one.output.mean_tokens)


def test_neither_its_length_nor_its_work_passes_the_cap() -> None:
    capped = a_prediction(n=3, max_tokens=100)
    assert capped.output.quantile(1.0) <= 100
    assert capped.work_tokens <= 300


def test_it_is_worked_out_once() -> None:
    prediction = a_prediction(n=2, max_tokens=100)
    assert prediction.output is prediction.output
