"""Tests of loadgen.progress."""

from io import StringIO

from rich.console import Console

from loadgen.plan import build
from loadgen.progress import watching
from loadgen.sweep import Job
from tests.loadgen.builders import a_trace_workflow, a_workflow_record


def shown(*, is_terminal: bool) -> str:
    plan = build([a_trace_workflow()] * 2, [0.0, 1.0], seed=3, qps=0.5, deadline_s=9.0)
    text = StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=100)
    with watching(console, runs=1) as watcher:
        watcher.start(Job(plan=plan, policy=None, label="as it is"))
        watcher.workflow(a_workflow_record(0))
        watcher.workflow(a_workflow_record(1, outcome="connect"))
    return text.getvalue()


def test_a_terminal_shows_bars_and_failures() -> None:
    text = shown(is_terminal=True)

    assert "2/2" in text
    assert "1 failed" in text


def test_elsewhere_each_run_is_a_line() -> None:
    assert shown(is_terminal=False) == "run 1/1: as it is, 0.5 workflows/s, seed 3\n"
