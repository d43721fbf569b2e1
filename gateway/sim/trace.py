"""Traces of workflows: what was called, in which order, how long the answers really were.

A trace is a list of `TraceWorkflow`. Three sources are read: the project's own JSON lines (one
workflow a line, as `dumps` writes and as the gateway's decision log is turned into), recorded
HexGen-Flow text-to-SQL runs (JSON), and single calls as CSV (`TIMESTAMP,ContextTokens,
GeneratedTokens`, the Azure 2023 format).
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """A trace file cannot be read; the message names file and place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCall:
    """One model call, with the length its answer really had."""

    stage: str
    prompt_tokens: int
    output_tokens: int
    template: str | None = None
    """Name of the leading text that calls of this kind share; None: nothing is shared."""
    template_tokens: int = 0

    def __post_init__(self) -> None:
        for tokens in (self.prompt_tokens, self.output_tokens, self.template_tokens):
            if not isinstance(tokens, int):
                raise ValueError(f"tokens come in whole numbers, not {tokens!r}")  # noqa: TRY004 - of a file
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("prompt_tokens and output_tokens must be >= 1")
        if not 0 <= self.template_tokens <= self.prompt_tokens:
            raise ValueError("template_tokens must lie between 0 and prompt_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """Calls that are sent together; the next step begins when all of them are back."""

    calls: tuple[TraceCall, ...]
    tool_s: float = 0.0
    """What the client does (SQL, tools) after the step before and before these calls."""

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("a step needs at least one call")
        if not 0 <= self.tool_s < inf:
            raise ValueError(f"tool_s must be >= 0, not {self.tool_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWorkflow:
    """One user question: steps one after the other."""

    name: str
    steps: tuple[TraceStep, ...]
    arrival_s: float | None = None
    """Seconds after the trace's start; None: arrivals are synthesised."""
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a workflow needs at least one step")

    @property
    def calls(self) -> Iterator[TraceCall]:
        """Every call, step by step."""
        return (call for step in self.steps for call in step.calls)


SINGLE = "single"
"""The name of a workflow that is one independent call: it has no workflow id on the wire."""
SINGLE_STAGE = "call"
TEXT2SQL = "text2sql"
TEXT2SQL_TEMPLATE_TOKENS: Mapping[str, int] = {
    "Information Retriever": 213,
    "extract_keywords": 630,
    "revise": 3059,
    "unit_tester": 213,
    "generate_unit_test": 436,
    "evaluate": 261,
}
"""Tokens shared by all prompts of a stage (published with the HexGen-Flow simulator)."""
CANDIDATE_STAGE = "generate_candidate_llama-agent"
CANDIDATE_TEMPLATE_TOKENS = (9158, 5292)
"""The two agents that generate candidates have a template each."""
PARALLEL_STAGES = frozenset({CANDIDATE_STAGE, "evaluate"})
"""Consecutive calls of these stages go together."""


def load(path: Path) -> list[TraceWorkflow]:
    """Read a trace file of any known form; TraceError names what is wrong and where."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise TraceError(f"{path}: the file is empty")
    if path.suffix == ".csv":
        workflows = _from_csv(path, text)
    elif text.lstrip().startswith("["):
        workflows = _from_hexgen(path, text)
    else:
        workflows = _from_json_lines(path, text)
    if not workflows:
        raise TraceError(f"{path}: no workflow in it")
    return workflows


def dumps(workflows: Iterable[TraceWorkflow]) -> str:
    """Return workflows as JSON lines that `load` reads back equal."""
    return "".join(json.dumps(_to_json(workflow)) + "\n" for workflow in workflows)


def _to_json(workflow: TraceWorkflow) -> dict[str, Any]:
    record: dict[str, Any] = {"workflow": workflow.name}
    if workflow.arrival_s is not None:
        record["arrival_s"] = workflow.arrival_s
    if workflow.deadline_s is not None:
        record["deadline_s"] = workflow.deadline_s
    record["steps"] = [
        {
            "tool_s": step.tool_s,
            "calls": [
                {
                    "stage": call.stage,
                    "prompt_tokens": call.prompt_tokens,
                    "output_tokens": call.output_tokens,
                    "template": call.template,
                    "template_tokens": call.template_tokens,
                }
                for call in step.calls
            ],
        }
        for step in workflow.steps
    ]
    return record


def _from_json_lines(path: Path, text: str) -> list[TraceWorkflow]:
    workflows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            workflows.append(_workflow_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{path}, line {number}: {_reason(error)}") from error
    return workflows


def _workflow_of(record: dict[str, Any]) -> TraceWorkflow:
    return TraceWorkflow(
        name=str(record["workflow"]),
        arrival_s=_seconds(record.get("arrival_s")),
        deadline_s=_seconds(record.get("deadline_s")),
        steps=tuple(
            TraceStep(
                tool_s=float(step.get("tool_s", 0.0)),
                calls=tuple(TraceCall(**call) for call in step["calls"]),
            )
            for step in record["steps"]
        ),
    )


def _from_hexgen(path: Path, text: str) -> list[TraceWorkflow]:
    try:
        records = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}: not valid JSON: {error}") from error
    workflows = []
    for number, record in enumerate(records):
        try:
            workflows.append(_text2sql_of(record["Text2SQLRequest"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{path}, workflow {number}: {_reason(error)}") from error
    return workflows


def _text2sql_of(calls: list[dict[str, Any]]) -> TraceWorkflow:
    steps: list[TraceStep] = []
    for stage, run in groupby(calls, key=lambda call: str(call["step"])):
        traced = [_text2sql_call(call, number) for number, call in enumerate(run)]
        if stage in PARALLEL_STAGES:
            steps.append(TraceStep(calls=tuple(traced)))
        else:
            steps.extend(TraceStep(calls=(call,)) for call in traced)
    return TraceWorkflow(name=TEXT2SQL, steps=tuple(steps))


def _text2sql_call(call: dict[str, Any], number: int) -> TraceCall:
    stage = str(call["step"])
    prompt_tokens = int(call["input_length"])
    if stage == CANDIDATE_STAGE:
        agent = number % len(CANDIDATE_TEMPLATE_TOKENS)
        template, shared = f"{stage}-{agent + 1}", CANDIDATE_TEMPLATE_TOKENS[agent]
    else:
        template, shared = stage, TEXT2SQL_TEMPLATE_TOKENS.get(stage, 0)
    return TraceCall(
        stage=stage,
        prompt_tokens=prompt_tokens,
        output_tokens=max(int(call["output_length"]), 1),
        template=template,
        template_tokens=min(shared, prompt_tokens),
    )


def _from_csv(path: Path, text: str) -> list[TraceWorkflow]:
    rows = csv.DictReader(text.split("\n"))
    workflows: list[TraceWorkflow] = []
    started_at: datetime | None = None
    try:
        for row in rows:
            # Seven fractional digits are written; Python reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            started_at = started_at or at
            call = TraceCall(
                stage=SINGLE_STAGE,
                prompt_tokens=max(int(row["ContextTokens"]), 1),
                output_tokens=max(int(row["GeneratedTokens"]), 1),
            )
            workflows.append(
                TraceWorkflow(
                    name=SINGLE,
                    steps=(TraceStep(calls=(call,)),),
                    arrival_s=(at - started_at).total_seconds(),
                )
            )
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise TraceError(f"{path}, line {rows.line_num}: {_reason(error)}") from error
    return workflows


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and isfinite(value):
        return float(value)
    raise ValueError(f"not a number of seconds: {value!r}")


def _reason(error: Exception) -> str:
    return f"missing key {error}" if isinstance(error, KeyError) else str(error)
