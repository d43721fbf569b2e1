"""Names and attributes of spans."""

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as conventions

from gateway.telemetry import spans
from gateway.telemetry.spans import OPERATIONS, operation_of


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        pytest.param("/v1/chat/completions", "chat", id="a word of the conventions"),
        pytest.param("/v1/rerank", "rerank", id="none of theirs: the path's last word"),
        pytest.param("", "unknown", id="no path is known"),
    ],
)
def test_operations_are_named_by_paths(path: str, operation: str) -> None:
    assert operation_of(path) == operation


def test_operations_are_those_of_the_conventions() -> None:
    known = {value.value for value in conventions.GenAiOperationNameValues}

    assert set(OPERATIONS.values()) <= known


def test_attributes_are_those_of_the_conventions() -> None:
    known = {getattr(conventions, name) for name in dir(conventions) if name.startswith("GEN_AI")}
    with open(spans.__file__, encoding="utf-8") as source:
        words = source.read().split('"')

    used = {word for word in words if word.startswith("gen_ai.") and " " not in word}
    assert len(used) >= 8
    assert used <= known
