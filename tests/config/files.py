"""Configuration files for tests, and what is wrong with them."""

from pathlib import Path

import pytest

from gateway.config.sources import load_settings
from gateway.mistakes import ConfigError

LEAST = "backends:\n  - {name: a, url: 'http://127.0.0.1:8001'}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "backends.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(tmp_path: Path, text: str) -> list[str]:
    """Return what is wrong with a file, without its path."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_settings(path)
    return [mistake.replace(str(path), "file") for mistake in error.value.mistakes]
