"""A prompt's row: what is special of it, and a few features."""

import numpy as np
import pytest

from gateway.predictor import vectors
from gateway.predictor.embedder import load_embedder
from gateway.predictor.vectors import FEATURES, Vectors, features

VECTORS = Vectors(load_embedder())
HEAD = "You write SQL for the database below. Think in steps, then answer.\n" * 100


def test_rows_have_length_one_and_so_have_coarse_ones() -> None:
    (row,) = VECTORS.of([("-", "Explain how vaccines work.")])
    coarse = VECTORS.coarse(row)
    assert (row.shape, coarse.shape) == ((VECTORS.dim,), (VECTORS.coarse_dim,))
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(coarse) == pytest.approx(1, abs=1e-5)


def test_inside_a_long_template_prompts_compare_as_they_do_alone() -> None:
    first, second = "How many employees were hired after 2019?", "Write a poem about autumn rain."
    for i in range(8):  # the stage becomes known
        VECTORS.of([("long", f"{HEAD}question {i} of some")])

    wrapped = VECTORS.of([("long", HEAD + first), ("long", HEAD + second)])

    alone = VECTORS.of([("-", first), ("-", second)])
    assert wrapped[0] @ wrapped[1] == pytest.approx(alone[0] @ alone[1], abs=0.02)


def test_the_same_prompt_is_embedded_once() -> None:
    (first,) = VECTORS.of([("s", "once and again")])
    (second,) = VECTORS.of([("s", "once and again")])
    assert first is second


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_CACHED", 10)
    own = Vectors(load_embedder("hashed"))
    for i in range(50):
        own.of([("s", f"prompt {i}")])
    assert len(own._cached) == 10


@pytest.mark.parametrize("text", ["", "?", "7", "x" * 100_000, "\n" * 5000])
def test_features_are_on_fixed_scales(text: str) -> None:
    found = features(text)
    assert len(found) == FEATURES
    assert all(-3 <= value <= 3 for value in found)
