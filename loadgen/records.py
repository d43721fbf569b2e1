"""What happened: CallRecord, WorkflowRecord, Run, and their JSON lines.

Instants are engine seconds since the run's start: wall seconds times the engines' speed-up.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import orjson

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call, sent and ended."""

    id: str
    workflow_id: str
    workflow_index: int
    step: int
    stage: str
    prompt_tokens: int
    """As planned; `usage_prompt_tokens` is what the engine counted."""
    output_tokens: int
    usage_prompt_tokens: int | None = None
    usage_output_tokens: int | None = None
    due_at_s: float
    """When the plan wanted it sent: its arrival, or the step before back plus tool time."""
    sent_at_s: float
    first_token_at_s: float | None = None
    """None unless the call streamed."""
    longest_gap_s: float | None = None
    """The longest pause between two chunks of a stream."""
    ended_at_s: float
    outcome: str
    """`ok`, or what went wrong: a closed set of words, and the server's error code."""
    status: int | None = None

    @property
    def lag_s(self) -> float:
        """How late the generator itself sent it."""
        return self.sent_at_s - self.due_at_s

    @property
    def latency_s(self) -> float:
        """From sent to the last token."""
        return self.ended_at_s - self.sent_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRecord:
    """One workflow, from its planned arrival to the end of its last call."""

    id: str
    index: int
    name: str
    arrival_s: float
    ended_at_s: float
    deadline_s: float
    outcome: str
    """`ok`, or the outcome of the first call that failed."""

    @property
    def latency_s(self) -> float:
        """From the planned arrival, so a late sender cannot flatter the system."""
        return self.ended_at_s - self.arrival_s


@dataclass(slots=True, kw_only=True)
class Run:
    """One plan under one policy."""

    policy: str
    qps: float | None
    seed: int
    plan: str
    """The plan's digest."""
    planned: int
    """Workflows in the plan; fewer records mean that the run was interrupted."""
    calls: list[CallRecord] = field(default_factory=list)
    workflows: list[WorkflowRecord] = field(default_factory=list)


def to_lines(run: Run) -> Iterable[bytes]:
    """Yield one JSON line a call, with the run it belongs to."""
    key = {"policy": run.policy, "qps": run.qps, "seed": run.seed}
    for call in run.calls:
        yield orjson.dumps(key | asdict(call), option=orjson.OPT_APPEND_NEWLINE)
