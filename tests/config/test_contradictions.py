"""Settings that are each fine, and not together."""

from pathlib import Path

import pytest

from gateway.config.sources import load_settings
from tests.config.files import LEAST, mistakes, written


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LEAST + LEAST[10:], "file:3: backends[1].name: 'a' is used twice"),
        (
            LEAST + "  - {name: b, url: 'http://127.0.0.1:8001/v1/'}\n",
            "file:3: backends[1].url: 'b' and 'a' are one engine: its memory would count twice",
        ),
        ("models: {a: {target: b}, b: {target: c}}", "file:1: models.a.target: 'b' is itself"),
        (
            "workflows:\n  w:\n    stages: [{name: a, depends_on: [b]}]\n",
            "file:2: workflows.w: stage 'a' of workflow 'w' depends on 'b'",
        ),
        ("host: 0.0.0.0\n", "file:1: host: 0.0.0.0 is reachable from outside"),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in mistake for mistake in mistakes(tmp_path, text))


def test_a_server_of_several_models_may_be_several_backends(tmp_path: Path) -> None:
    text = "backends:\n" + "".join(
        f"  - {{name: {name}, url: 'http://h', model: {name}}}\n" for name in ("a", "b")
    )

    assert len(load_settings(written(tmp_path, text)).backends) == 2
