"""Recorder: what the live gateway served, as a trace that the simulator can play.

An observer of the decision log that keeps the latest finished workflows and single calls in a
bounded ring; `read_decision_log` makes the same of the log's file. Answers' true lengths are kept,
prompts never were there.

How calls hang together is read off their times: a call that arrives before any call of the step
under way has ended cannot depend on one of them, so it belongs to that step; a later one begins
the next step, and the time since the last of the step's calls ended is what the client did in
between.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.commands import Command, Settle, WorkflowEnded
from gateway.core.events import Arrived, Event
from gateway.core.outcomes import Outcome
from gateway.sim import trace
from gateway.sim.trace import SINGLE, TraceCall, TraceError, TraceStep, TraceWorkflow

MAX_RECORDED = 2000
"""Workflows and single calls that are kept; older ones give way."""
MAX_READ = 1_000_000
"""The same when a file is read."""
MAX_OPEN = 10_000
"""Workflows that may be open at once; the one that has been open longest is given up first."""
MAX_CALLS_A_WORKFLOW = 512
Template = tuple[str, int]
"""What a prompt shares with others: a name for it, and its tokens."""
UNNAMED = "unnamed"
UNNAMED_STAGE = "call"


class AnsweredCall(NamedTuple):
    """One completed call."""

    arrived_at: float
    ended_at: float
    stage: str | None
    prompt_tokens: int
    output_tokens: int
    template: Template | None

    def traced(self) -> TraceCall:
        """Return it as part of a trace."""
        prompt_tokens = max(self.prompt_tokens, 1)
        name, shared_tokens = self.template or (None, 0)
        return TraceCall(
            stage=self.stage or UNNAMED_STAGE,
            prompt_tokens=prompt_tokens,
            output_tokens=max(self.output_tokens, 1),
            template=name,
            template_tokens=min(shared_tokens, prompt_tokens),
        )


class _Ended(NamedTuple):
    """A workflow or a single call that is complete."""

    name: str
    calls: list[AnsweredCall]
    arrived_at: float
    deadline_s: float | None

    def traced(self, zero_at: float) -> TraceWorkflow:
        """Return it as part of a trace that begins at this instant."""
        return TraceWorkflow(
            name=self.name,
            steps=tuple(steps_of(self.calls)),
            arrival_s=self.arrived_at - zero_at,
            deadline_s=self.deadline_s,
        )


@dataclass(slots=True)
class _OpenWorkflow:
    name: str | None
    calls: list[AnsweredCall]


class Recorder:
    """The latest traffic. `observe` is an observer of the driver (or of a simulation's log)."""

    def __init__(self, max_recorded: int = MAX_RECORDED) -> None:
        self._recorded: deque[_Ended] = deque(maxlen=max_recorded)
        """Put into steps when somebody asks: that is once in minutes."""
        self._open: OrderedDict[tuple[str, str], _OpenWorkflow] = OrderedDict()
        self._templates: dict[str, Template] = {}
        """Of requests that are not settled, if they have one."""

    def __len__(self) -> int:
        return len(self._recorded)

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take in one event with what followed."""
        del now
        if isinstance(event, Arrived) and event.request.prefix:
            prefix = event.request.prefix
            shared_tokens = sum(segment.tokens for segment in prefix)
            self._templates[event.request.id] = (f"{prefix[-1].key:x}", shared_tokens)
        for command in commands:
            if isinstance(command, Settle):
                self._settled(command)
            elif isinstance(command, WorkflowEnded):
                self.workflow_ended(
                    command.key, command.name, command.opened_at, command.deadline_at
                )

    def trace(self, since: float = -inf) -> list[TraceWorkflow]:
        """Return what arrived at or after `since`, by arrival, counted from the first arrival."""
        recent = [ended for ended in self._recorded if ended.arrived_at >= since]
        recent.sort(key=lambda ended: ended.arrived_at)
        return [ended.traced(recent[0].arrived_at) for ended in recent]

    def answered(
        self,
        call: AnsweredCall,
        workflow: tuple[str, str] | None,
        name: str | None,
        deadline_at: float | None,
    ) -> None:
        """A call is complete. Without a workflow it is a trace of its own."""
        if workflow is None:
            self._record(SINGLE, [call], call.arrived_at, deadline_at)
            return
        run = self._open.get(workflow)
        if run is None:
            run = self._open[workflow] = _OpenWorkflow(name, [])
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        if len(run.calls) < MAX_CALLS_A_WORKFLOW:
            run.calls.append(call)

    def workflow_ended(
        self,
        workflow: tuple[str, str],
        name: str | None,
        opened_at: float,
        deadline_at: float | None,
    ) -> None:
        """No call of this workflow will come any more; one without answers is not worth a line."""
        run = self._open.pop(workflow, None)
        if run is not None and run.calls:
            self._record(name or run.name or UNNAMED, run.calls, opened_at, deadline_at)

    def _settled(self, settled: Settle) -> None:
        template = self._templates.pop(settled.request_id, None)
        if settled.outcome is not Outcome.COMPLETED:
            return
        self.answered(
            AnsweredCall(
                settled.arrived_at,
                settled.ended_at,
                settled.stage,
                settled.prompt_tokens,
                settled.output_tokens,
                template,
            ),
            settled.workflow,
            settled.workflow_name,
            settled.deadline_at,
        )

    def _record(
        self, name: str, calls: list[AnsweredCall], began_at: float, deadline_at: float | None
    ) -> None:
        deadline_s = None if deadline_at is None else max(deadline_at - began_at, 0.0)
        first_at = min(call.arrived_at for call in calls)
        self._recorded.append(_Ended(name, calls, first_at, deadline_s))


def steps_of(calls: Iterable[AnsweredCall]) -> list[TraceStep]:
    """Return the calls of one workflow as steps one after the other."""
    steps: list[TraceStep] = []
    together: list[AnsweredCall] = []
    first_end = inf
    last_end: float | None = None
    for call in sorted(calls, key=lambda call: (call.arrived_at, call.ended_at)):
        if call.arrived_at >= first_end:
            steps.append(_step(together, last_end))
            last_end = max(other.ended_at for other in together)
            together, first_end = [], inf
        together.append(call)
        first_end = min(first_end, call.ended_at)
    if together:
        steps.append(_step(together, last_end))
    return steps


def load(path: Path) -> list[TraceWorkflow]:
    """Read a trace of any form that `trace.load` knows, or a decision log."""
    try:
        with path.open("rb") as file:
            first = file.readline(65536)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    return read_decision_log(path) if b'"type"' in first else trace.load(path)


def read_decision_log(path: Path) -> list[TraceWorkflow]:
    """Return the traffic that a decision log tells of; TraceError names the line that it cannot.

    A log that is being written may end in half a line: that one is left out.
    """
    recorder = Recorder(max_recorded=MAX_READ)
    templates: dict[str, Template] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n") or not line.strip():
                continue
            try:
                _read_line(recorder, templates, json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise TraceError(f"{path}, line {number}: not of a decision log: {error}") from None
    if not len(recorder):
        raise TraceError(f"{path}: the decision log tells of no completed call")
    return recorder.trace()


def _read_line(recorder: Recorder, templates: dict[str, Template], line: dict[str, Any]) -> None:
    command = line.get("command", {})
    match line["type"]:
        case "Arrived" if line.get("template"):
            templates[line["request_id"]] = (line["template"], int(line["template_tokens"]))
        case "Settle":
            template = templates.pop(command["request_id"], None)
            if command["outcome"] != Outcome.COMPLETED:
                return
            call = AnsweredCall(
                float(command["arrived_at"]),
                float(command["ended_at"]),
                command["stage"],
                command["prompt_tokens"],
                command["output_tokens"],
                template,
            )
            call.traced()  # what cannot be one is told of with its line
            recorder.answered(
                call,
                None if command["workflow"] is None else _key(command["workflow"]),
                command["workflow_name"],
                command["deadline_at"],
            )
        case "WorkflowEnded":
            recorder.workflow_ended(
                _key(command["key"]), command["name"], command["opened_at"], command["deadline_at"]
            )


def _key(value: list[str]) -> tuple[str, str]:
    tenant, id = value
    return tenant, id


def _step(calls: Sequence[AnsweredCall], last_end: float | None) -> TraceStep:
    began_at = min(call.arrived_at for call in calls)
    return TraceStep(
        calls=tuple(call.traced() for call in calls),
        tool_s=0.0 if last_end is None else max(began_at - last_end, 0.0),
    )
