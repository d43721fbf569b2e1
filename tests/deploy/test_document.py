"""docs/deployment.md: what it says to type works, what it says to write is accepted."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.places import ROOT
from tests.deploy.test_helm import rendered

TEXT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_every_bash_block_runs() -> None:
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    assert blocks("bash")
    for script in blocks("bash"):
        subprocess.run(["bash", "-euc", script], check=True, cwd=ROOT, env=environment)


def test_the_values_render() -> None:
    (block,) = blocks("yaml")
    values: dict[str, Any] = yaml.safe_load(block)

    assert "PersistentVolumeClaim" in rendered(values)


@pytest.mark.parametrize("pattern", [r"deploy/[\w/.-]*\w", r"(?<![\w/.])tests/\w+"])
def test_every_file_that_is_named_is_there(pattern: str) -> None:
    named = set(re.findall(pattern, TEXT))

    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_variable_of_the_table_is_one_of_the_compose_file() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    table = set(re.findall(r"`([A-Z_]+)`", "".join(re.findall(r"^\| .*$", TEXT, re.MULTILINE))))

    assert {name for name in table if "${" + name not in compose} == set()
    used = set(re.findall(r"\$\{([A-Z_]+)", compose))
    assert {name for name in used if f"`{name}`" not in TEXT} == {"TGI_IMAGE"}


def test_every_alert_that_is_named_is_there() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")

    assert all(name in rules for name in re.findall(r"`(HexSage\w+)`", TEXT))
