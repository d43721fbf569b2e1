"""Where settings come from, in which order, and mistakes by their place there."""

from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.config.sources import load_settings
from gateway.mistakes import ConfigError
from tests.config.files import LEAST, mistakes, written


def test_without_a_file_everything_has_a_default() -> None:
    assert load_settings(None).port == 8080


def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, LEAST + "queue: {max_requests: 1, timeout_s: 1}\nport: 1\n")
    monkeypatch.setenv("HEXSAGE_QUEUE__MAX_REQUESTS", "2")
    monkeypatch.setenv("HEXSAGE_PORT", "2")

    settings = load_settings(path, {"port": 3})

    assert settings.port == 3
    assert (settings.queue.max_requests, settings.queue.timeout_s) == (2, 1)
    assert settings.queue.max_bytes == Settings.model_fields["queue"].default.max_bytes


def test_every_mistake_is_listed_with_its_line(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """backends:
  - name: a
    url: ftp://x
    gpuu: L4
  - name: b
    gpu: Z9
    api_key_env: HEXSAGE_TEST_UNSET
queue:
  max_requests: many
policy: {name: zzz}
colour: red
""",
    )

    lines = sorted(int(mistake.split(":")[1]) for mistake in found)
    assert lines == [3, 4, 5, 6, 7, 9, 10, 11]
    assert "file:4: backends[0].gpuu: is no key that HexSage knows" in found
    assert "file:5: backends[1].url: is missing" in found
    assert "file:11: colour: is no key that HexSage knows" in found


def test_what_the_environment_got_wrong_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEXSAGE_QUEUE__TIMEOUT_S", "-1")
    monkeypatch.setenv("HEXSAGE_COLOUR", "red")

    with pytest.raises(ConfigError) as error:
        load_settings(None)

    assert sorted(mistake.partition(":")[0] for mistake in error.value.mistakes) == [
        "HEXSAGE_COLOUR",
        "HEXSAGE_QUEUE__TIMEOUT_S",
    ]


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "nope.yaml")


def test_the_repositorys_own_file_is_sound() -> None:
    assert load_settings(Path(__file__).parents[2] / "backends.yaml").backends
