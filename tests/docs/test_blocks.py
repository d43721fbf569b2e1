"""Every block in the documents is run here, or is named below with the reason why not."""

import configparser
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.settings import Settings
from gateway.config.sources import load_settings
from tests.docs.markdown import PAGES, ROOT, Block, blocks
from tests.docs.place import Place, a_place

ALL = [block for path in PAGES for block in blocks(path)]
RUN = "bash"
"""Shell that is run here."""
NOT_RUN = "console"
"""Shell that is not: each of its commands is in the table."""
SHOWN = frozenset({"text", "mermaid"})
"""Pictures."""

REASONS = {
    "make demo": "four minutes, one with FAST=1: CI runs it, tests/test_demo.py its parts",
    "make test": "it would run this very test",
    "loadgen sweep": "minutes at real speed; tests/loadgen/test_main.py sweeps",
    "docker compose": "there is no Docker here; tests/deploy/test_compose.py",
    "docker build": "there is no Docker here; tests/deploy/test_image.py",
    "docker run": "there is no Docker here; tests/deploy/test_image.py",
    "helm install": "there is no cluster here; tests/deploy/test_helm.py renders the chart",
    "python3 -m venv /opt": "only root may",
    "/opt/hexsage/bin/pip": "only root may",
    "install -": "only root may",
    "systemctl": "there is no systemd here; tests/deploy/test_systemd.py",
    "export OPENBLAS_NUM_THREADS": "belongs to a bench",
    "python -m examples.text2sql": "tests/examples/ runs the agent",
    "python -m bench.": "a bench takes minutes to hours",
}
"""Commands that are not run here, by how they begin, and why."""


def in_(language: str) -> list[Any]:
    """The blocks of a language, named by where they stand."""
    return [pytest.param(block, id=str(block)) for block in ALL if block.language == language]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with a_place(tmp_path_factory.mktemp("docs")) as found:
        yield found


def test_every_block_says_what_it_is() -> None:
    known = {RUN, NOT_RUN, *SHOWN, "python", "yaml", *READERS}

    assert {str(block): block.language for block in ALL if block.language not in known} == {}


@pytest.mark.parametrize("block", in_(RUN))
def test_shell_runs(block: Block, place: Place) -> None:
    place.run(block)


@pytest.mark.parametrize("block", in_(NOT_RUN))
def test_shell_that_is_not_run_is_shell_and_has_a_reason(block: Block) -> None:
    assert block.commands
    script = "\n".join(block.commands)
    checked = subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    without = [
        command
        for command in block.commands
        if not any(command.startswith(begin) for begin in REASONS)
    ]
    assert without == [], "mark the block as bash, or say here why it cannot be run"


def test_no_reason_is_left_over() -> None:
    commands = [command for block in ALL if block.language == NOT_RUN for command in block.commands]
    assert commands

    unused = [
        begin for begin in REASONS if not any(command.startswith(begin) for command in commands)
    ]
    assert unused == []


@pytest.mark.parametrize("block", in_("python"))
def test_python_runs(block: Block, place: Place) -> None:
    code = compile(place.here(block.text), str(block), "exec")

    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("block", in_("yaml"))
def test_yaml_is_taken_by_what_reads_it(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load(block.text)
    assert isinstance(content, dict)
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "hexsage" / "values.yaml").read_text())
    if "config" in content:  # the chart's values: tests/deploy/test_document.py renders them
        assert set(content) <= set(values), "keys that the chart does not have"
        content = content["config"]
    for name in re.findall(r"api_key_env: *(\w+)", block.text):
        monkeypatch.setenv(name, "k")
    for name in [name for name in os.environ if name.startswith("HEXSAGE_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "backends.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")

    assert set(load_settings(path).model_fields_set) == set(content) & set(Settings.model_fields)


def _is_ini(text: str) -> bool:
    parser = configparser.ConfigParser(strict=False)
    parser.read_string(text)
    return bool(parser.sections())


def _is_nginx(text: str) -> bool:
    bare = re.sub(r"#.*|\"[^\"]*\"", "", text)
    lines = [line.strip() for line in bare.splitlines() if line.strip()]
    is_balanced = bare.count("{") == bare.count("}") > 0
    return is_balanced and all(line[-1] in "{};" for line in lines)


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "ini": _is_ini,
    "nginx": _is_nginx,
}
"""What only another program can use: read as far as can be."""


@pytest.mark.parametrize("block", [block for name in READERS for block in in_(name)])
def test_what_others_read_is_well_formed(block: Block) -> None:
    assert READERS[block.language](block.text)
