"""`hexsage why` and `hexsage top` before a gateway that runs."""

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.admin import KEY_ENV
from tests.e2e.processes import free_port


@pytest.fixture(autouse=True)
def _keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_ENV, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def ask(gateway: str, request_id: str) -> None:
    """Have a call answered."""
    body = {
        "model": "m1",
        "messages": [{"role": "user", "content": "secret"}],
        "max_tokens": 5,
        "metadata": {"workflow-id": "looked-at\x1b[2J", "workflow-name": "t"},
    }
    request = urllib.request.Request(
        f"{gateway}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-request-id": request_id},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_why_tells_where_a_call_went(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask(gateway, "e2e/why")
    assert main(["why", "e2e/why", "--url", gateway]) == 0

    told = capsys.readouterr().out
    assert "completed on" in told
    assert "chosen" in told
    assert "looked-at?[2J" in told
    assert "secret" not in told


def test_why_as_json_is_what_the_api_tells(
    gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(gateway, "e2e-json")
    assert main(["why", "e2e-json", "--json", "--url", gateway]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["client_request_id"], told["outcome"]) == ("e2e-json", "completed")


def test_why_of_nobody_is_a_sentence(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "nobody", "--url", gateway]) == 1
    assert "`nobody`" in capsys.readouterr().err


def test_top_once_prints_a_frame(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask(gateway, "e2e-top")
    assert main(["top", "--once", "--url", gateway]) == 0

    told = capsys.readouterr().out
    for part in ("HexSage", "a100-80g-0", "L40S", "up", "nothing waits", "workflow open"):
        assert part in told
    assert "\x1b" not in told


def test_top_shows_the_whole_fleet_in_80_columns(
    gateway: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["top", "--once", "--url", gateway]) == 0

    told = capsys.readouterr().out
    assert "…" not in told
    assert all(part in told for part in ("a100-80g-0", "KV budget", " 0 %", "prefill"))


@pytest.mark.parametrize("words", [["top", "--once"], ["why", "x"]])
def test_without_a_gateway_they_say_so(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main([*words, "--url", url]) == 3

    told = capsys.readouterr()
    assert told.err.startswith(f"no gateway answers at {url}")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("interval", ["0", "soon", "inf", "nan"])
def test_an_interval_that_is_none_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["top", "--interval", interval])

    assert raised.value.code == 2
    assert interval in capsys.readouterr().err


def test_top_goes_on_in_a_terminal_until_ctrl_c(gateway: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "top", "--interval", "0.05", "--url", gateway]
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=errors,
            env={**os.environ, "TERM": "xterm-256color"},
        ) as process,
    ):
        os.close(theirs)
        seen = b""
        while seen.count(b"HexSage") < 3:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    os.close(ours)
    assert (tmp_path / "errors").read_bytes() == b""
