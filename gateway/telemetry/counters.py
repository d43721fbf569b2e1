"""Counters: the decision log in numbers. An observer of the driver.

Label sets are closed: models are those that backends serve, workflow names those that the
configuration declares, stages those of such a workflow; anything else a client may write is
`other`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from gateway.core.commands import Command, Settle, Start, WorkflowEnded
from gateway.core.events import BackendRemoved, Event, Failed
from gateway.core.outcomes import Outcome
from gateway.core.specs import WorkflowSpec
from gateway.core.types import BackendId
from gateway.telemetry.histogram import SHORT, Histogram
from gateway.telemetry.lateness import cause_of

OTHER = "other"


class Counters:
    """Everything that is counted, in plain integers; rendered when somebody asks."""

    def __init__(
        self, knows_model: Callable[[str], bool], declared: Mapping[str, WorkflowSpec]
    ) -> None:
        """`declared` are the workflows of the configuration, by name; it may change."""
        self._knows_model = knows_model
        self._declared = declared
        self.requests: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        """By model, outcome and reason."""
        self.tokens: defaultdict[tuple[str, str], int] = defaultdict(int)
        """By model and kind: prompt or output."""
        self.starts: defaultdict[BackendId, int] = defaultdict(int)
        self.retries: defaultdict[BackendId, int] = defaultdict(int)
        """Second and later attempts."""
        self.failures: defaultdict[str, int] = defaultdict(int)
        """Failed attempts by kind, those that a retry healed included."""
        self.late: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Answers after their deadline, by model and cause."""
        self.stages: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        """Answers that had a deadline, by workflow name, stage and whether late."""
        self.workflows: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        """By name, state and whether late."""
        self.queue_s: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.first_token_s: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.inter_token_s: defaultdict[str, Histogram] = defaultdict(_short)
        """Of streams: each call's mean time from one token to the next."""
        self.last_token_s: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.workflow_s: defaultdict[str, Histogram] = defaultdict(Histogram)

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Count what has happened and what was decided."""
        del now
        if isinstance(event, Failed):
            self.failures[event.kind.value] += 1
        elif isinstance(event, BackendRemoved):
            self.starts.pop(event.backend_id, None)
            self.retries.pop(event.backend_id, None)
        for command in commands:
            if isinstance(command, Settle):
                self._settle(command)
            elif isinstance(command, Start):
                self.starts[command.backend_id] += 1
                if command.attempt > 1:
                    self.retries[command.backend_id] += 1
            elif isinstance(command, WorkflowEnded):
                self._end_workflow(command)

    def _settle(self, settle: Settle) -> None:
        model = settle.model if self._knows_model(settle.model) else OTHER
        reason = settle.reason.value if settle.reason is not None else ""
        self.requests[model, settle.outcome.value, reason] += 1
        if settle.started_at is not None:
            self.queue_s[model].observe(settle.started_at - settle.arrived_at)
        if settle.outcome is not Outcome.COMPLETED:
            return
        self.tokens[model, "prompt"] += settle.prompt_tokens
        self.tokens[model, "output"] += settle.output_tokens
        self.last_token_s[model].observe(settle.ended_at - settle.arrived_at)
        if settle.first_token_at is not None:
            self.first_token_s[model].observe(settle.first_token_at - settle.arrived_at)
            if settle.output_tokens > 1:
                steps_s = settle.ended_at - settle.first_token_at
                self.inter_token_s[model].observe(steps_s / (settle.output_tokens - 1))
        if settle.deadline_at is None:
            return
        cause = cause_of(settle)
        if cause is not None:
            self.late[model, cause.value] += 1
        if settle.workflow is not None:
            workflow, stage = self._known(settle.workflow_name, settle.stage)
            self.stages[workflow, stage, "false" if cause is None else "true"] += 1

    def _known(self, name: str | None, stage: str | None) -> tuple[str, str]:
        """Return labels for a workflow's name and stage."""
        spec = self._declared.get(name) if name else None
        if name is None or spec is None:
            return OTHER, OTHER
        return name, stage if stage and spec.stage(stage) else OTHER

    def _end_workflow(self, ended: WorkflowEnded) -> None:
        name, _ = self._known(ended.name, None)
        self.workflows[name, ended.state, "true" if ended.is_late else "false"] += 1
        if ended.state == "completed":
            self.workflow_s[name].observe(ended.ended_at - ended.opened_at)


def _short() -> Histogram:
    return Histogram(SHORT)
