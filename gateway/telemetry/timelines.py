"""Timelines: when each call of the latest workflows waited and ran. An observer."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.core.commands import Command, Settle, Start, WorkflowEnded
from gateway.core.events import Arrived, Event
from gateway.core.outcomes import Outcome
from gateway.core.types import BackendId, InferenceRequest, WorkflowKey

MAX_TIMELINES = 512
MAX_SPANS = 200
"""Calls of one workflow that are remembered, the first ones."""


@dataclass(slots=True, kw_only=True)
class Span:
    """One call of a workflow: it waits until `started_at`, runs until `ended_at`."""

    request_id: str
    stage: str | None
    arrived_at: float
    started_at: float | None = None
    ended_at: float | None = None
    backend_id: BackendId | None = None
    outcome: Outcome | None = None


@dataclass(slots=True, kw_only=True)
class Timeline:
    """One workflow."""

    key: WorkflowKey
    name: str | None
    spans: list[Span] = field(default_factory=list)
    ended: WorkflowEnded | None = None


class Timelines:
    """The workflows that were called or ended latest. Bounded."""

    def __init__(self, max_timelines: int = MAX_TIMELINES) -> None:
        self._max_timelines = max_timelines
        self._by_key: OrderedDict[WorkflowKey, Timeline] = OrderedDict()
        self._spans: dict[str, Span] = {}
        """Those of calls that have not ended."""

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take down when calls come, start and end."""
        if isinstance(event, Arrived) and event.request.workflow is not None:
            self._arrive(event.request, now)
        for command in commands:
            if isinstance(command, Start):
                span = self._spans.get(command.request_id)
                if span is not None:
                    span.started_at = now
                    span.backend_id = command.backend_id
            elif isinstance(command, Settle):
                span = self._spans.pop(command.request_id, None)
                if span is not None:
                    span.ended_at = now
                    span.outcome = command.outcome
            elif isinstance(command, WorkflowEnded):
                timeline = self._by_key.get(command.key)
                if timeline is not None:
                    timeline.ended = command
                    self._by_key.move_to_end(command.key)

    def __iter__(self) -> Iterator[Timeline]:
        """Every timeline, the latest first."""
        return reversed(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def _arrive(self, request: InferenceRequest, now: float) -> None:
        ref = request.workflow
        if ref is None or request.id in self._spans:
            return
        timeline = self._by_key.get(ref.key)
        if timeline is None or timeline.ended is not None:
            timeline = self._by_key[ref.key] = Timeline(key=ref.key, name=ref.name)
            if len(self._by_key) > self._max_timelines:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(ref.key)
        timeline.name = timeline.name or ref.name
        if len(timeline.spans) < MAX_SPANS:
            span = Span(request_id=request.id, stage=ref.stage, arrived_at=now)
            timeline.spans.append(span)
            self._spans[request.id] = span
