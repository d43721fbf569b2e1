"""EngineOptions: what makes no engine is refused."""

from typing import Any

import pytest

from gateway.core.profiles import PROFILES
from gateway.emulator.options import EngineOptions
from tests.emulator.asgi import some_options


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speed": 0}, "speed"),
        ({"min_chunk_s": -1}, "min_chunk_s"),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_model_len": 10_000_000}, "max_model_len"),
    ],
)
def test_an_impossible_option_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        some_options(**changes)


def test_an_engine_needs_a_model() -> None:
    with pytest.raises(ValueError, match="model name"):
        EngineOptions(name="x", profile=PROFILES["L4"], models=())


def test_the_context_fits_the_cache_in_whole_blocks() -> None:
    assert some_options(PROFILES["A100-40G"]).context_tokens == 56_992
