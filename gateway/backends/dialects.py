"""The kinds of engine there are, by the names that a configuration gives them."""

from collections.abc import Collection

from gateway.backends.dialect import Dialect
from gateway.backends.openai import OpenAiDialect
from gateway.backends.tgi import TgiDialect
from gateway.backends.vllm import VllmDialect


def dialect_of(kind: str, priority_scheduling: bool, adapters: Collection[str]) -> Dialect:
    """Return a dialect of its own for one backend: it may learn."""
    if kind == "tgi":
        return TgiDialect(frozenset(adapters))
    return (VllmDialect if kind == "vllm" else OpenAiDialect)(priority_scheduling)
