"""The Dockerfile: linted; its files are there; its health check tells; its steps work.

There is no Docker here: the steps run in environments of their own, which takes minutes, so only
where TEST_IMAGE_STEPS is set.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.places import ROOT, tool
from tests.e2e.processes import a_fleet, free_port

FILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, its words), comments and line ends taken out."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def copied() -> list[str]:
    """Return what is copied from the source tree."""
    return [
        source
        for word, rest in instructions()
        if word == "COPY"
        for source in rest.split()[:-1]
        if not source.startswith("--")
    ]


def health_check() -> list[str]:
    """Return the health check's command."""
    words = next(rest for word, rest in instructions() if word == "HEALTHCHECK")
    command: list[str] = json.loads(words.partition("CMD ")[2])
    return command


def test_hadolint_finds_nothing() -> None:
    result = subprocess.run([tool("hadolint"), str(FILE)], capture_output=True, text=True)

    assert result.returncode == 0, result.stdout


def test_both_stages_stand_on_the_same_pinned_base() -> None:
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]

    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])


def test_only_the_first_stage_has_a_compiler() -> None:
    installs = [index for index, (_, rest) in enumerate(instructions()) if "apt-get" in rest]
    stages = [index for index, (word, _) in enumerate(instructions()) if word == "FROM"]

    assert all(stages[0] < index < stages[1] for index in installs)


def test_nobody_is_root() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]

    assert users == ["10001"]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert set(copied()) == kept
    assert all((ROOT / source).exists() for source in copied())


def test_the_health_check_tells_a_gateway_from_its_absence(tmp_path: Path) -> None:
    python, *words = health_check()
    assert python == "python"

    def check(port: int) -> int:
        command = [sys.executable, *(word.replace("8080", str(port)) for word in words)]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode

    with a_fleet(tmp_path, "L40S") as url:
        assert check(int(url.rpartition(":")[2])) == 0
    assert check(free_port()) != 0


@pytest.mark.skipif(
    "TEST_IMAGE_STEPS" not in os.environ,
    reason="set TEST_IMAGE_STEPS: it builds wheels for minutes",
)
def test_the_steps_make_a_gateway_that_starts(tmp_path: Path) -> None:
    source, wheels, venv = tmp_path / "source", tmp_path / "wheels", tmp_path / "venv"
    source.mkdir()
    for name in copied():
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, source / name)
        else:
            shutil.copy(origin, source / name)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    arguments = dict(rest.split("=") for word, rest in instructions() if word == "ARG")
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}

    for word, rest in instructions():
        step = rest.rpartition("target=/wheels ")[2]
        if word == "RUN" and step.startswith("pip "):
            words = shlex.split(step.replace("/wheels", str(wheels)))
            pip = [str(venv / "bin" / words[0]), *words[1:]]
            subprocess.run(pip, check=True, cwd=source, env=environment | arguments)

    hexsage = str(venv / "bin" / "hexsage")
    backends = tmp_path / "backends.yaml"
    shutil.copy(ROOT / "backends.yaml", backends)
    for words in (["--version"], ["check", str(backends)]):
        subprocess.run([hexsage, *words], check=True, cwd=tmp_path, env=environment)
    # Everything that the commands import is in the wheels.
    for words in (["serve"], ["emulate"], ["simulate"], ["tune"], ["profile"]):
        command = [hexsage, *words, "--help"]
        subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True)
    loadgen = [str(venv / "bin" / "loadgen"), "--help"]
    subprocess.run(loadgen, check=True, cwd=tmp_path, env=environment, capture_output=True)
