"""Texts become vectors of length one, by whichever embedder."""

from pathlib import Path

import numpy as np
import pytest

from gateway.predictor import embedder
from gateway.predictor.embedder import Embedder, HashingEmbedder, StaticEmbedder, load_embedder

STATIC = load_embedder()
TEXTS = ["Write a poem about rain.", "", "x" * 5000, "Ünïcode 漢字 \ud800 and 😀", "a" * 3]


@pytest.mark.parametrize("each", [STATIC, HashingEmbedder()], ids=["static", "hashed"])
def test_every_text_has_a_vector_of_length_one(each: Embedder) -> None:
    rows = each.embed(TEXTS)
    assert rows.shape == (len(TEXTS), each.dim)
    assert np.linalg.norm(rows[[0, 2, 3, 4]], axis=1) == pytest.approx(1, abs=1e-4)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("each", [STATIC, HashingEmbedder()], ids=["static", "hashed"])
def test_alike_texts_are_nearer_than_unlike_ones(each: Embedder) -> None:
    poem, rain, sql = each.embed(
        ["Write a poem about the rain.", "Please write poems about rain!", "How do I join tables?"]
    )
    assert poem @ rain > poem @ sql + 0.3


def test_a_batch_gives_what_one_at_a_time_gives() -> None:
    one_by_one = np.concatenate([STATIC.embed([text]) for text in TEXTS])
    assert STATIC.embed(TEXTS) == pytest.approx(one_by_one, abs=1e-6)


def test_the_built_in_model_is_used_unless_something_else_is_asked_for() -> None:
    assert isinstance(STATIC, StaticEmbedder)
    assert isinstance(load_embedder("hashed"), HashingEmbedder)


def test_without_its_file_a_gateway_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "DATA", tmp_path)
    assert isinstance(load_embedder(), HashingEmbedder)


def test_a_transformer_plugs_in_by_its_path(tmp_path: Path) -> None:
    # The static model's graph has a transformer's inputs and outputs, and is at hand.
    for name in ("static.onnx", "tokenizer.json"):
        (tmp_path / name).write_bytes((embedder.DATA / name).read_bytes())

    plugged = load_embedder(str(tmp_path / "static.onnx"))

    assert plugged.name.startswith("transformer-")
    assert plugged.embed(["Write a poem."]).shape == (1, plugged.dim)
    assert plugged.dim == 256
