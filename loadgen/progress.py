"""Live progress on a terminal; a line a run elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.records import OK, WorkflowRecord
from loadgen.sweep import Job


class Watcher(Protocol):
    """Told what a sweep does."""

    def start(self, job: Job) -> None:
        """A run begins."""

    def workflow(self, record: WorkflowRecord) -> None:
        """A workflow of it ended."""


@contextmanager
def watching(console: Console, runs: int) -> Iterator[Watcher]:
    """Yield what shows the progress of so many runs."""
    if not console.is_terminal:
        yield _Lines(console, runs)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bars(progress, runs)


class _Lines:
    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._runs = runs
        self._started = 0

    def start(self, job: Job) -> None:
        self._started += 1
        self._console.print(f"run {self._started}/{self._runs}: {_name(job)}", highlight=False)

    def workflow(self, record: WorkflowRecord) -> None:
        """A log needs no line a workflow."""


class _Bars:
    def __init__(self, progress: Progress, runs: int) -> None:
        self._progress = progress
        self._runs = progress.add_task("runs", total=runs)
        self._current = progress.add_task("", total=1, visible=False)
        self._started = 0
        self._failed = 0

    def start(self, job: Job) -> None:
        self._progress.update(self._runs, completed=self._started)
        self._started += 1
        self._failed = 0
        self._progress.reset(
            self._current, total=len(job.plan.workflows), description=_name(job), visible=True
        )

    def workflow(self, record: WorkflowRecord) -> None:
        self._failed += record.outcome != OK
        self._progress.advance(self._current)
        if self._failed:
            self._progress.update(self._current, description=f"{self._failed} failed")


def _name(job: Job) -> str:
    rate = "recorded rate" if job.plan.qps is None else f"{job.plan.qps:g} workflows/s"
    return f"{job.label}, {rate}, seed {job.plan.seed}"
