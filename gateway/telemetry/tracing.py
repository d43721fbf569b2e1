"""Tracing: one trace a workflow, a span a call, what it waited for and ran on below. An observer.

It decides on ids and instants; sending spans away is an Exporter's business.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from gateway.core.commands import Command, Settle, Start, WorkflowEnded
from gateway.core.events import Arrived, Event, Failed, Finished
from gateway.core.types import BackendId, InferenceRequest, RequestId, WorkflowKey
from gateway.telemetry.spans import (
    Attributes,
    Kind,
    Span,
    attempt_attributes,
    call_attributes,
    error_of,
    operation_of,
    workflow_attributes,
)
from gateway.telemetry.traceparent import TraceContext, read_traceparent

MAX_INTRODUCED = 10_000
"""Calls that have been told of and have not arrived: they wait for a prediction, or never will."""
NOBODY = "hexsage"
"""The provider of what no engine was asked."""
_S = 1_000_000_000


class Exporter(Protocol):
    """Sends spans away."""

    def samples(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        """Return whether a span is kept, and with it what happens below."""

    def export(self, span: Span) -> None:
        """Have it sent, soon. It must neither wait nor raise."""


@dataclass(slots=True, kw_only=True)
class _Workflow:
    context: TraceContext
    parent: TraceContext | None
    offset_ns: int
    opened_at: float
    name: str | None


@dataclass(slots=True, kw_only=True)
class _Call:
    request: InferenceRequest
    operation: str
    context: TraceContext
    parent: TraceContext | None
    links: tuple[TraceContext, ...]
    offset_ns: int
    """From the gateway's clock to the calendar, as it was when the call came."""
    arrived_at: float
    waits_since: float
    cached_tokens: int | None = None
    start: Start | None = None
    """The attempt under way, its span and its beginning."""
    attempt: TraceContext | None = None
    started_at: float = 0.0


class Tracing:
    """Traces of what is under way. What is over is with the exporter."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        now_ns: Callable[[], int],
        random: Random,
        is_open: Callable[[WorkflowKey], bool],
        kind_of: Callable[[BackendId], str | None],
    ) -> None:
        """`now_ns` is the calendar's; `is_open` says whether the scheduler knows a workflow,
        `kind_of` what kind of engine a backend is."""
        self._exporter = exporter
        self._now_ns = now_ns
        self._random = random
        self._is_open = is_open
        self._kind_of = kind_of
        self._calls: dict[str, _Call] = {}
        self._workflows: dict[WorkflowKey, _Workflow] = {}
        self._introduced: OrderedDict[RequestId, tuple[str, str]] = OrderedDict()

    def introduce(self, request_id: RequestId, path: str, traceparent: str) -> None:
        """Be told of a call that will arrive: its path, and its client's word or ""."""
        self._introduced[request_id] = (path, traceparent)
        if len(self._introduced) > MAX_INTRODUCED:
            self._introduced.popitem(last=False)

    def traceparent(self, request_id: RequestId) -> str | None:
        """Return the header for the attempt under way; None: as the client sent it."""
        call = self._calls.get(request_id)
        if call is None:
            return None
        return (call.attempt or call.context).header

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take down what happens; send away what is over."""
        if isinstance(event, Arrived):
            self._arrive(event.request, now)
        elif isinstance(event, Failed):
            call = self._calls.get(event.request_id)
            if call is not None:
                self._end_attempt(call, now, event.kind.value)
                call.waits_since = now
        elif isinstance(event, Finished) and event.cached_tokens:
            call = self._calls.get(event.request_id)
            if call is not None:
                call.cached_tokens = event.cached_tokens
        for command in commands:
            if isinstance(command, Start):
                self._start(command, now)
            elif isinstance(command, Settle):
                self._settle(command)
            elif isinstance(command, WorkflowEnded):
                self._end_workflow(command)

    def close(self, now: float) -> None:
        """Send away the workflows that are open: their calls are waiting for them."""
        for key, workflow in self._workflows.items():
            self._export_workflow(key, workflow, now, None)
        self._workflows.clear()

    def _arrive(self, request: InferenceRequest, now: float) -> None:
        path, said = self._introduced.pop(request.id, ("", ""))
        if request.id in self._calls:
            return  # it is turned away: the id is that of the call that has it
        operation = operation_of(path)
        client = read_traceparent(said)
        offset_ns = self._now_ns() - int(now * _S)
        root = self._workflow_of(request, client, offset_ns, now)
        parent = client or root
        links: tuple[TraceContext, ...] = ()
        if root is not None and client is not None:
            # A call stands below its client's span, if that is of the workflow's trace at all.
            is_same = client.trace_id == root.trace_id
            parent, links = (client, (root,)) if is_same else (root, (client,))
        context = self._below(parent, f"{operation} {request.model}")
        self._calls[request.id] = _Call(
            request=request,
            operation=operation,
            context=context if context.is_sampled or client is None else client,
            parent=parent,
            links=links,
            offset_ns=offset_ns,
            arrived_at=now,
            waits_since=now,
        )

    def _workflow_of(
        self, request: InferenceRequest, client: TraceContext | None, offset_ns: int, now: float
    ) -> TraceContext | None:
        ref = request.workflow
        if ref is None:
            return None
        workflow = self._workflows.get(ref.key)
        if workflow is None:
            if not self._is_open(ref.key):
                return None  # the call was refused, and nothing else belongs to it
            workflow = self._workflows[ref.key] = _Workflow(
                context=self._below(client, "invoke_workflow"),
                parent=client,
                offset_ns=offset_ns,
                opened_at=now,
                name=ref.name,
            )
        return workflow.context

    def _start(self, start: Start, now: float) -> None:
        call = self._calls.get(start.request_id)
        if call is None:
            return
        self._end_wait(call, now)
        call.start, call.started_at = start, now
        if call.context.is_sampled:
            call.attempt = TraceContext(call.context.trace_id, self._random.getrandbits(64) | 1)

    def _settle(self, settle: Settle) -> None:
        call = self._calls.pop(settle.request_id, None)
        if call is None or not call.context.is_sampled:
            return
        error = error_of(settle)
        if call.start is not None:
            self._end_attempt(call, settle.ended_at, error)
        elif settle.ended_at > call.waits_since:
            self._end_wait(call, settle.ended_at)
        provider = self._kind_of(settle.backend_id) if settle.backend_id is not None else None
        attributes = call_attributes(call.request, call.operation, settle, provider or NOBODY)
        if call.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = call.cached_tokens
        self._exporter.export(
            Span(
                name=f"{call.operation} {call.request.model}",
                kind=Kind.SERVER,
                context=call.context,
                parent=call.parent,
                began_at_ns=int(call.arrived_at * _S) + call.offset_ns,
                ended_at_ns=int(settle.ended_at * _S) + call.offset_ns,
                attributes=attributes,
                error=error,
                links=call.links,
            )
        )

    def _end_wait(self, call: _Call, now: float) -> None:
        self._export_part(call, "queue", Kind.INTERNAL, call.waits_since, now)

    def _end_attempt(self, call: _Call, now: float, error: str | None) -> None:
        start, call.start = call.start, None
        if start is None:
            return
        attributes = attempt_attributes(start)
        context, call.attempt = call.attempt, None
        self._export_part(
            call, "upstream", Kind.CLIENT, call.started_at, now, context, attributes, error
        )

    def _export_part(
        self,
        call: _Call,
        name: str,
        kind: Kind,
        began_at: float,
        ended_at: float,
        context: TraceContext | None = None,
        attributes: Attributes | None = None,
        error: str | None = None,
    ) -> None:
        if not call.context.is_sampled:
            return
        self._exporter.export(
            Span(
                name=name,
                kind=kind,
                context=context
                or TraceContext(call.context.trace_id, self._random.getrandbits(64) | 1),
                parent=call.context,
                began_at_ns=int(began_at * _S) + call.offset_ns,
                ended_at_ns=int(ended_at * _S) + call.offset_ns,
                attributes=attributes or {},
                error=error,
            )
        )

    def _end_workflow(self, ended: WorkflowEnded) -> None:
        workflow = self._workflows.pop(ended.key, None)
        if workflow is not None:
            workflow.name = ended.name
            self._export_workflow(ended.key, workflow, ended.ended_at, ended)

    def _export_workflow(
        self, key: WorkflowKey, workflow: _Workflow, ended_at: float, ended: WorkflowEnded | None
    ) -> None:
        if not workflow.context.is_sampled:
            return
        opened_at = workflow.opened_at if ended is None else ended.opened_at
        is_good = ended is None or ended.state == "completed"
        self._exporter.export(
            Span(
                name=f"invoke_workflow {workflow.name}" if workflow.name else "invoke_workflow",
                kind=Kind.INTERNAL,
                context=workflow.context,
                parent=workflow.parent,
                began_at_ns=int(opened_at * _S) + workflow.offset_ns,
                ended_at_ns=int(ended_at * _S) + workflow.offset_ns,
                attributes=workflow_attributes(workflow.name, key.id, ended),
                error=None if is_good or ended is None else ended.state,
            )
        )

    def _below(self, parent: TraceContext | None, name: str) -> TraceContext:
        """Return a new span's place in its parent's trace, or in one of its own."""
        trace_id = parent.trace_id if parent else self._random.getrandbits(128) | 1
        is_sampled = self._exporter.samples(parent, trace_id, name)
        return TraceContext(trace_id, self._random.getrandbits(64) | 1, is_sampled)
