"""Vectors and scores are made up, but in vLLM's shapes, and the same for the same text."""

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.emulator.asks import Refusal
from gateway.emulator.vllm_pooling import ANSWERS, DIMENSIONS
from tests.emulator.asgi import some_options

HEADERS = {b"content-type": b"application/json"}


def asked(path: str, **fields: object) -> Any:
    """What the path answers."""
    reply = ANSWERS[path](HEADERS, orjson.dumps(fields), some_options())
    assert reply.status == 200
    return orjson.loads(reply.body)


def test_equal_texts_have_equal_vectors_of_length_one() -> None:
    answer = asked("/v1/embeddings", model="m1", input=["a", "b", "a"])

    first, second, third = (np.array(entry["embedding"]) for entry in answer["data"])
    assert len(first) == DIMENSIONS
    assert np.linalg.norm(first) == pytest.approx(1)
    assert (first == third).all()
    assert not (first == second).all()
    assert answer["usage"]["prompt_tokens"] == 3


def test_a_vector_may_be_wanted_as_text() -> None:
    numbers = asked("/v1/embeddings", input="a", dimensions=8)["data"][0]["embedding"]
    text = asked("/v1/embeddings", input="a", dimensions=8, encoding_format="base64")

    raw = base64.b64decode(text["data"][0]["embedding"])
    assert np.frombuffer(raw, dtype="<f4").tolist() == pytest.approx(numbers)


def test_documents_come_best_first_and_no_more_than_wanted() -> None:
    answer = asked("/rerank", query="q", documents=["a", {"text": "b"}, "c"], top_n=2)

    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 2


def test_one_text_is_scored_against_all_others() -> None:
    answer = asked("/score", text_1="a", text_2=["b", "c"])

    assert [entry["index"] for entry in answer["data"]] == [0, 1]


def test_probabilities_sum_to_one() -> None:
    (entry,) = asked("/classify", input=["a"])["data"]

    assert sum(entry["probs"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/embeddings", {}, 400),
        ("/v1/embeddings", {"model": "nope", "input": "a"}, 404),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, 400),
        ("/rerank", {"query": "q"}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(path: str, fields: dict[str, object], status: int) -> None:
    with pytest.raises(Refusal) as refused:
        asked(path, **fields)

    assert refused.value.reply.status == status
