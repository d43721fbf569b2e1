"""Histories: nearest samples, two generations, bounds."""

import numpy as np
import pytest

from gateway.predictor import generation
from gateway.predictor import history as module
from gateway.predictor.embedder import HashingEmbedder
from gateway.predictor.floats import Floats
from gateway.predictor.generation import GUESS, TOKENS, Sample
from gateway.predictor.history import Histories, History
from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

VECTORS = Vectors(HashingEmbedder())


def rows(count: int, seed: int = 1) -> Vector:
    """Return unit vectors in clusters."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((20, VECTORS.dim))[rng.integers(0, 20, count)]
    found += 0.7 * rng.standard_normal((count, VECTORS.dim))
    unit: Vector = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
    return unit


def filled(count: int, window: int = 10_000) -> tuple[History, Vector]:
    """Return a history of samples of 0, 1, 2 … tokens, and their vectors."""
    vectors = rows(count)
    histories = Histories(VECTORS, window, 2, 10**9)
    for number, vector in enumerate(vectors):
        history, build = histories.add("m", Sample(vector, float(number), False, 0))
        if build is not None:
            build.run()
            build.keep()
    return history, vectors


@pytest.mark.parametrize(
    ("count", "window", "graphs"),
    [
        pytest.param(50, 10_000, 0, id="fewer than are asked for"),
        pytest.param(900, 10_000, 0, id="all whole vectors"),
        pytest.param(1500, 10_000, 0, id="all coarse vectors as floats"),
        pytest.param(2900, 3000, 0, id="of two generations"),
        pytest.param(1500, 2400, 1, id="a graph, and the rest whole"),
        pytest.param(1500, 12_000, 0, id="all coarse vectors as bytes"),
    ],
)
def test_the_nearest_are_found(
    count: int, window: int, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "GRAPH_ABOVE", 5000 if window != 2400 else 1100)
    history, vectors = filled(count, window)
    assert sum(g.graph is not None for g in history.generations) == graphs
    hits, asked = 0, vectors[:100]
    for vector in asked:
        found = set(history.nearest(vector, 10).facts[:, TOKENS].astype(int))
        hits += len(found & set(np.argsort(vectors @ vector)[-10:].tolist()))
    assert hits >= 8.5 * len(asked)  # bytes for floats, and a graph, cost a little


def test_prompts_that_are_all_but_alike_are_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their graph falls into parts: a search reaches fewer than it is asked for."""
    monkeypatch.setattr(generation, "GRAPH_ABOVE", 1000)
    room, rng = 1200, np.random.default_rng(1)
    histories = Histories(VECTORS, 2 * room, 2, 10**9)
    (prompt,) = rows(1)
    for number in range(room + 1):
        vector = prompt + 1e-3 * rng.standard_normal(VECTORS.dim).astype(np.float32)
        history, build = histories.add("m", Sample(vector, float(number), False, 0))
        if build is not None:
            build.run()
            build.keep()
    assert history.generations[0].graph is not None

    found = history.nearest(prompt, 128)

    assert len(found.facts) == 97
    assert found.similarity.min() > 0.9


@pytest.mark.parametrize(
    ("count", "found"),
    [pytest.param(900, 15, id="all are compared"), pytest.param(1500, 10, id="most are left out")],
)
def test_more_are_returned_where_they_cost_nothing(count: int, found: int) -> None:
    history, vectors = filled(count)
    assert len(history.nearest(vectors[0], 10).facts) == found


def test_the_older_generation_goes_when_the_newer_is_full() -> None:
    history, _ = filled(250, window=100)
    assert 50 <= len(history) <= 100
    kept = [g.facts[: g.size, TOKENS] for g in history.generations]
    assert np.concatenate(kept).min() == 150


def test_a_graph_whose_memory_was_needed_elsewhere_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "GRAPH_ABOVE", 1000)
    room = 1200
    limit = 4 * room * (VECTORS.dim + VECTORS.coarse_dim + 24) + 4_000_000
    histories = Histories(VECTORS, 2 * room, 8, limit)
    builds = []
    for number, vector in enumerate(rows(3 * room + 2)):
        model = "first" if number <= room else "second"
        builds.append(histories.add(model, Sample(vector, 1.0, False, 0))[1])
    due = [build for build in builds if build is not None]
    for build in due:
        build.run()
        build.keep()
    assert len(due) == 1
    first = histories.get("first")
    assert first is not None
    assert first.generations[0].graph is None
    assert histories.nbytes <= limit


def test_an_empty_history_has_no_neighbours() -> None:
    assert (
        len(History(100, VECTORS, Floats(1, 50 * VECTORS.dim)).nearest(rows(1)[0], 5).similarity)
        == 0
    )


def test_guesses_go_beside_the_samples_they_are_of() -> None:
    history, _ = filled(70, window=100)
    latest = history.latest(30)
    latest.store(np.expm1(latest.log_tokens))
    facts = np.concatenate([g.facts[: g.size] for g in history.generations])
    assert facts[-30:, GUESS] == pytest.approx(facts[-30:, TOKENS], rel=1e-3)
    assert np.isnan(facts[:-30, GUESS]).all()


def test_models_are_bounded_least_recently_used_first() -> None:
    histories = Histories(VECTORS, 100, 2, 10**9)
    for model in ("a", "b", "a", "c"):
        histories.add(model, Sample(rows(1)[0], 1.0, False, 0))
    assert set(histories.sizes()) == {"a", "c"}


def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "GRAPH_ABOVE", 1000)
    limit = 5_000_000
    histories = Histories(VECTORS, 4000, 8, limit)
    for number, vector in enumerate(rows(20_000)):
        _, build = histories.add(f"m{number % 4}", Sample(vector, 1.0, False, 0))
        if build is not None:
            build.run()
            build.keep()
        assert histories.nbytes <= limit
    assert sum(histories.sizes().values()) >= 4000


def test_where_the_memory_is_needed_for_samples_they_are_compared_as_bytes() -> None:
    vectors = rows(6000)
    ample, scarce = (Histories(VECTORS, 4000, 1, limit) for limit in (10**9, 2_600_000))
    for number, vector in enumerate(vectors):
        for histories in (ample, scarce):
            history, _ = histories.add("m", Sample(vector, float(number), False, 0))
            if number % 400 == 0:
                history.nearest(vector, 10)
    assert ample.rooms.nbytes > 0
    assert scarce.rooms.nbytes == 0
    of_ample, of_scarce = ample.get("m"), scarce.get("m")
    assert of_ample is not None
    assert of_scarce is not None
    assert len(of_ample) == len(of_scarce)
    for vector in vectors[::300]:
        found = [each.nearest(vector, 10).facts[:, TOKENS] for each in (of_ample, of_scarce)]
        assert set(found[0]) == set(found[1])


def test_the_median_follows_what_is_added() -> None:
    history, _ = filled(101)
    assert history.log_median_tokens() == pytest.approx(np.log(50), abs=0.1)


def test_stage_numbers_stay_as_long_as_they_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STAGE_NUMBERS", 100)
    histories = Histories(VECTORS, 100, 2, 10**9)
    first = histories.stage_number("kept")
    for number in range(1000):
        assert 0 <= histories.stage_number(f"s{number}") < 100
        assert histories.stage_number("kept") == first
