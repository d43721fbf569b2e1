"""Engines: what must be said of them, and what may."""

from pathlib import Path

import pytest

from gateway.config.sources import load_settings
from gateway.core.profiles import built_in
from gateway.core.types import BackendId
from tests.config.files import LEAST, mistakes, written


def test_a_backend_needs_a_name_and_a_url_and_nothing_else(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, LEAST))

    (entry,) = settings.backends
    backend = entry.to_core(frozenset({"m"}), kv_tokens=1234)
    assert (backend.id, backend.models) == (BackendId("a"), frozenset({"m"}))
    assert backend.profile.kv_tokens == 1234
    assert settings.policy.to_core().name == "hexsage"
    assert settings.is_loopback


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("backends: [{name: a, url: 'http://169.254.169.254/'}]", "must not be link-local"),
        (
            "backends: [{name: a, url: 'http://h', timeouts: {queue_s: 1}}]",
            "file:1: backends[0].timeouts.queue_s: is no key",
        ),
        ("backends: [{name: a, url: 'http://u:p@h'}]", "must have no user, password"),
        ("backends: [{name: a, url: 'http://h', kind: nope}]", "backends[0].kind: "),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in mistake for mistake in mistakes(tmp_path, text))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("gpu: H200", "the model's size must be given (model_size_b)"),
        ("gpu: L4, model_size_b: 70", "do not fit 1 x L4"),
        ("gpu: L4, gpus: 2", "gpus and weight_bits need model_size_b"),
        ("gpu: L4, weight_bits: 4", "gpus and weight_bits need model_size_b"),
    ],
)
def test_a_gpu_that_cannot_hold_the_model_is_a_mistake(
    tmp_path: Path, keys: str, told: str
) -> None:
    (mistake,) = mistakes(tmp_path, f"backends:\n  - {{name: a, url: 'http://a', {keys}}}\n")

    assert mistake.startswith("file:2: backends[0]: ")
    assert told in mistake


def test_a_profile_is_computed_for_the_model_and_the_gpus_it_is_split_over(tmp_path: Path) -> None:
    keys = "gpu: H100, model_size_b: 70, weight_bits: 8, gpus: 4"
    path = written(tmp_path, f"backends:\n  - {{name: a, url: 'http://a', {keys}}}\n")

    assert load_settings(path).backends[0].gpu_profile == built_in("H100", 70, 8, 4)
