"""The command line, from flags to files and exit codes."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.sim.trace import dumps
from loadgen.__main__ import main
from tests.loadgen.builders import a_trace_workflow
from tests.loadgen.stub_server import Answering, StubServer, answer_at_once, stub_server

LINES = [a_trace_workflow(arrival_s=float(at)) for at in range(3)]


def on_command_line(
    *flags: str, answering: Answering = answer_at_once, at: str | None = None
) -> tuple[int, StubServer]:
    """Run `loadgen` in a thread against a server on this one's event loop."""

    async def go() -> tuple[int, StubServer]:
        async with stub_server(answering) as stub:
            target = ["--target", at or f"{stub.url}/v1", "--speed", "1000"]
            return await asyncio.to_thread(main, [*flags, *target]), stub

    return asyncio.run(go())


def test_a_sweep_writes_report_records_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, stub = on_command_line(
        *("sweep", "--qps", "5,9", "--policies", "a,b:alpha=0.5", "--workload", "chat"),
        *("--workflows", "4", "--out", str(tmp_path / "report"), "--title", "Four chats"),
    )

    assert code == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "attainment.png",
        "calls.jsonl",
        "goodput.png",
        "latency.png",
        "report.html",
        "report.md",
        "result.json",
        "slowest.png",
        "stages.png",
    }
    result = orjson.loads((tmp_path / "report" / "result.json").read_bytes())
    assert result["settings"]["title"] == "Four chats"
    assert [(one["label"], one["workflow_rate"]) for one in result["cells"]] == [
        ("a", 5.0),
        ("b:alpha=0.5", 5.0),
        ("a", 9.0),
        ("b:alpha=0.5", 9.0),
    ]
    assert len((tmp_path / "report" / "calls.jsonl").read_text().splitlines()) == 16
    assert len(stub.calls) == 16
    out = capsys.readouterr()
    assert "b:alpha=0.5" in out.out
    assert "run 4/4: a, 9 workflows/s, seed 1" in out.err


def test_a_model_that_is_not_there_is_told_before_the_first_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", "--qps", "5", "--model", "nope", "--out", str(tmp_path / "report"))
    code, stub = on_command_line(*flags)

    assert code == 3
    assert stub.calls == []
    assert "lists no 'nope', only m1" in capsys.readouterr().err


def test_a_recording_is_replayed_at_its_own_instants(tmp_path: Path) -> None:
    recording = tmp_path / "trace.jsonl"
    recording.write_text(dumps(LINES))
    code, stub = on_command_line(
        *("replay", "--trace", str(recording), "--out", str(tmp_path / "report"))
    )

    assert code == 0
    assert len(stub.calls) == 3
    assert not stub.policies


def test_two_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        on_command_line(
            *("sweep", "--qps", "50", "--workload", "chat", "--workflows", "40"),
            *("--out", str(tmp_path / name)),
        )
    capsys.readouterr()

    code = main(["compare", str(tmp_path / "a/result.json"), str(tmp_path / "b/result.json")])
    assert code == 0
    assert "verdict on P95" in capsys.readouterr().out


def test_failed_calls_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def answering(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=500, text="no")

    code, _ = on_command_line(
        *("sweep", "--qps", "50", "--workload", "chat", "--workflows", "2"),
        *("--out", str(tmp_path)),
        answering=answering,
    )

    assert code == 1
    assert "beware" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        pytest.param(["sweep"], "required: --qps", id="a flag is missing"),
        pytest.param(["sweep", "--qps", "1,x"], "--qps: 'x' is not a number", id="no number"),
        pytest.param(["sweep", "--qps", "0"], "--qps: '0' must be above 0", id="no rate"),
        pytest.param(["sweep", "--qps", "nan"], "--qps: 'nan' must be", id="not finite"),
        pytest.param(["sweep", "--workflows", "0"], "--workflows: '0' is not", id="no workflow"),
        pytest.param(["sweep", "--warmup", "0.6"], "--warmup: a share below", id="all is cut"),
        pytest.param(["sweep", "--policies", "a,a"], "named twice", id="twice the same"),
        pytest.param(["sweep", "--policies", "a:alpha=7"], "A between 0 and 1", id="odd alpha"),
        pytest.param(["sweep", "--gpus", "A100,Z80"], "no built-in profile", id="unknown GPU"),
        pytest.param(["sweep", "--target", "host:1"], "is not like http://", id="no URL"),
        pytest.param(["fly"], "invalid choice: 'fly'", id="no such command"),
    ],
)
def test_a_wrong_flag_is_named(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)

    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "flags", "complaint"),
    [
        pytest.param("", (), "trace.jsonl: the file is empty", id="empty"),
        pytest.param("[]", (), "trace.jsonl: no workflow in it", id="no workflow"),
        pytest.param("{\n", (), "trace.jsonl, line 1: ", id="broken"),
        pytest.param(dumps([a_trace_workflow()]), (), "give a rate with --qps", id="no instants"),
        pytest.param(
            dumps(LINES), ("--api-key-env", "NOT_SET_ANYWHERE"), "no variable", id="no key"
        ),
        pytest.param(dumps(LINES), ("--out", "/dev/null/x"), "--out /dev/null/x: ", id="out"),
    ],
)
def test_a_wrong_file_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    flags: tuple[str, ...],
    complaint: str,
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(content)
    code, stub = on_command_line(
        *("replay", "--trace", str(trace), "--out", str(tmp_path / "report"), *flags)
    )

    assert code == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.startswith("loadgen: ")
    assert not stub.calls


def test_a_target_that_is_not_there_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = on_command_line(
        *("sweep", "--qps", "1", "--out", str(tmp_path)), at="http://127.0.0.1:1"
    )

    assert code == 3
    assert "http://127.0.0.1:1/v1/models failed" in capsys.readouterr().err


def test_nothing_to_compare_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, qps in (("a", "50"), ("b", "60")):
        on_command_line(
            *("sweep", "--qps", qps, "--workload", "chat", "--workflows", "2"),
            *("--out", str(tmp_path / name)),
        )

    code = main(["compare", str(tmp_path / "a/result.json"), str(tmp_path / "b/result.json")])
    assert code == 2
    assert "have no rate in common" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    async def go() -> tuple[int | None, bytes]:
        third_is_here = asyncio.Event()
        answering = _blocking_the_third(third_is_here)
        async with stub_server(answering) as stub:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadgen", "sweep", "--qps", "50", "--workload", "chat"),
                *("--workflows", "3", "--warmup", "0", "--target", stub.url),
                *("--out", str(tmp_path)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            await third_is_here.wait()
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
            return process.returncode, err

    code, err = asyncio.run(go())

    assert code == 130
    assert err.endswith(b"loadgen: interrupted\n")
    assert b"Traceback" not in err
    (cell,) = orjson.loads((tmp_path / "result.json").read_bytes())["cells"]
    assert cell["cell"]["is_complete"] is False
    assert len(cell["cell"]["measured"]) == 2


def _blocking_the_third(
    third_is_here: asyncio.Event,
) -> Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]:
    answered = 0

    async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal answered
        if answered == 2:
            third_is_here.set()
            await asyncio.Event().wait()
        answered += 1
        return await answer_at_once(request, body)

    return answering
