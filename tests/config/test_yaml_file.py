"""A configuration file: what is wrong with it as YAML, with its line."""

from pathlib import Path

import pytest

from gateway.config.yaml_file import YamlFile
from tests.config.files import mistakes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "file:1: must hold keys such as `backends:`"),
        ("[]", "file:1: must hold keys such as `backends:`"),
        ("backends: [", "file:1: is not YAML"),
        ("port: 8080\nbackends: !secret x", "file:2: is not YAML"),
        ("port: 2020-13-45", "file: holds a value that is none: month must be in 1..12"),
        ("port: " + "9" * 5000, "file: holds a value that is none"),
        ("port: &a [*a]", "file: is nested too deeply"),
        ("port: " + "[" * 5000, "file: is nested too deeply"),
        ("port: 8080\n1: 2", "file:2: 1 is no text: put the key in quotes"),
        ("models:\n  ? [a]\n  : {target: b}", "file:2: "),
        ("a: 1\na: 2\n", "file:2: a is given twice"),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in mistake for mistake in mistakes(tmp_path, text))


def test_bytes_that_are_no_text_are_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_bytes(b"\xff\xfe")

    assert YamlFile.read(path).mistakes == [f"{path}: is not UTF-8 text"]
