"""Every kind that a configuration may name has its dialect."""

from typing import get_args

import pytest

from gateway.backends.dialects import dialect_of
from gateway.backends.openai import OpenAiDialect
from gateway.backends.tgi import TgiDialect
from gateway.backends.vllm import VllmDialect
from gateway.config.backends import BackendEntry


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [("vllm", VllmDialect), ("tgi", TgiDialect), ("openai", OpenAiDialect)],
)
def test_a_kind_is_its_dialect(kind: str, dialect: type) -> None:
    assert type(dialect_of(kind, priority_scheduling=True, adapters=())) is dialect


def test_there_is_no_other_kind() -> None:
    assert get_args(BackendEntry.model_fields["kind"].annotation) == ("vllm", "tgi", "openai")


def test_backends_learn_apart() -> None:
    one, other = (dialect_of("vllm", priority_scheduling=True, adapters=()) for _ in range(2))
    assert one is not other
