"""The `hexsage` command."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from gateway.__main__ import COMMANDS, main

HEXSAGE = (sys.executable, "-m", "gateway")


def test_the_version_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code in {0, None}
    assert re.fullmatch(
        r"hexsage \d+\.\d+\.\d+ \((interpreted|compiled)\)\n", capsys.readouterr().out
    )


def test_check_says_yes_to_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("backends: [{name: a, url: 'http://127.0.0.1:1'}]")

    assert main(["check", str(path)]) == 0
    assert "1 backend, policy" in capsys.readouterr().out


def test_check_names_every_mistake_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("backends: [{name: a}]\nqueue: {size: 1}\n")

    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}:1: backends[0].url: is missing" in said
    assert f"{path}:2: queue.size: is no key that HexSage knows" in said


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("backends:\n\t- name: a", "cannot start any token: indent with spaces"),
        ("backends: []", "no backends: name some in backends.yaml"),
        (
            "backends:\n  - name: a\n    url: http://127.0.0.1:99999",
            "b.yaml:3: backends[0].url: must have a port from 1 to 65535",
        ),
        (
            "backends:\n  - name: a\n    url: https://a\n    tls: {ca_file: no.pem}",
            "b.yaml: backends[0].tls.ca_file: no.pem cannot be read (No such file or directory)",
        ),
        (
            "backends: [{name: a, url: 'http://a'}]\ntls: {cert_file: c.pem, key_file: k.pem}",
            "b.yaml: tls.key_file: k.pem cannot be read (No such file or directory)",
        ),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["serve", "--config"]])
def test_check_refuses_what_serve_would_not_start_with(
    command: list[str],
    content: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(content)

    assert main([*command, str(path)]) == 1
    assert told in capsys.readouterr().err


def test_serve_names_a_decision_log_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, nowhere = tmp_path / "b.yaml", tmp_path / "none" / "log.jsonl"
    path.write_text("backends: [{name: a, url: 'http://127.0.0.1:1'}]")

    assert main(["serve", "--config", str(path), "--decision-log", str(nowhere)]) == 1
    told = f"decision_log: {nowhere} cannot be written (No such file or directory)\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("argv", [["serve", "--config", "nope.yaml"], ["serve", "--port", "x"]])
def test_serve_does_not_start_on_a_mistake(argv: list[str]) -> None:
    try:
        code = main(argv)
    except SystemExit as stop:  # argparse's own way
        code = int(str(stop.code))
    assert code != 0


@pytest.mark.parametrize("command", ["serve", "check"])
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    assert f"hexsage {command}" in capsys.readouterr().out


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    said = capsys.readouterr().out
    assert all(re.search(rf"^\s+{name}\s", said, re.MULTILINE) for name in COMMANDS)


def test_a_served_gateway_stops_cleanly_when_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("backends: [{name: a, url: 'http://127.0.0.1:9'}]\nport: 0\n")
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}
    with subprocess.Popen(
        [*HEXSAGE, "serve", "--config", str(path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "dashboard" in line:
                break
        told = re.search(
            r"OpenAI clients: (http://127.0.0.1:\d+)/v1, dashboard: (.*)/dashboard$", line
        )
        assert told is not None
        assert told[1] == told[2]
        with urllib.request.urlopen(f"{told[1]}/dashboard", timeout=20) as page:
            assert page.status == 200
        process.send_signal(signal.SIGTERM)
        began_at = time.perf_counter()
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert time.perf_counter() - began_at < 10
