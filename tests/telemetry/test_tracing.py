"""Traces, as an observer of the decision log makes them."""

from random import Random

from gateway.core.events import (
    Abandoned,
    Arrived,
    Event,
    Failed,
    Finished,
    FirstToken,
    WorkflowCompleted,
)
from gateway.core.outcomes import FailureKind
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import ANONYMOUS, InferenceRequest, RequestId, WorkflowKey
from gateway.telemetry.spans import Kind, Span
from gateway.telemetry.traceparent import TraceContext, read_traceparent
from gateway.telemetry.tracing import MAX_INTRODUCED, Tracing
from tests.builders import a_backend, a_request, a_workflow

CHAT = "/v1/chat/completions"
CLIENT = TraceContext(0xAAAA, 0xBBBB)
EPOCH_NS = 1_000_000_000_000
"""What the calendar says at the clock's zero."""


class Kept:
    """An exporter that keeps what it is given, and its verdict on sampling."""

    def __init__(self, *, samples: bool = True) -> None:
        self.spans: list[Span] = []
        self._samples = samples

    def samples(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        del trace_id, name
        return self._samples if parent is None else parent.is_sampled

    def export(self, span: Span) -> None:
        self.spans.append(span)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


class Story:
    """A scheduler and its traces, one event after the other."""

    def __init__(self, *backends: str, samples: bool = True) -> None:
        self.kept = Kept(samples=samples)
        self.now = 0.0
        self._scheduler = Scheduler(
            [a_backend(name) for name in backends or ("b",)],
            policy_from_name("round_robin+fcfs"),
        )
        self.tracing = Tracing(
            self.kept,
            now_ns=lambda: EPOCH_NS + int(self.now * 1e9),
            random=Random(1),
            is_open=lambda key: self._scheduler.workflows.get(key) is not None,
            kind_of=lambda _: "vllm",
        )

    def at(self, now: float, event: Event) -> None:
        self.now = now
        self.tracing.observe(now, event, self._scheduler.handle(event, now))

    def arrives(self, now: float, request: InferenceRequest, client: TraceContext | None) -> None:
        self.tracing.introduce(request.id, CHAT, client.header if client else "")
        self.at(now, Arrived(request))

    def upstream(self, name: str) -> TraceContext:
        """What the engine is told of the attempt under way."""
        header = self.tracing.traceparent(RequestId(name))
        assert header is not None
        context = read_traceparent(header)
        assert context is not None
        return context


def test_a_call_has_a_span_with_its_wait_and_its_attempt_below() -> None:
    story = Story()
    story.arrives(1.0, a_request("r"), None)
    told = story.upstream("r")
    story.at(1.5, FirstToken(RequestId("r")))
    story.at(3.0, Finished(RequestId("r"), 10, prompt_tokens=90, cached_tokens=64))

    queue, upstream, call = story.kept.spans
    assert [span.name for span in (queue, upstream, call)] == ["queue", "upstream", "chat m1"]
    assert [span.kind for span in (queue, upstream, call)] == [
        Kind.INTERNAL,
        Kind.CLIENT,
        Kind.SERVER,
    ]
    assert call.parent is None
    assert queue.parent == upstream.parent == call.context
    assert upstream.context == told
    assert len({span.context.trace_id for span in story.kept.spans}) == 1
    assert len({span.context.span_id for span in story.kept.spans}) == 3
    began_at_ns = EPOCH_NS + 1_000_000_000
    assert (call.began_at_ns, call.ended_at_ns) == (began_at_ns, began_at_ns + 2_000_000_000)
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m1",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.time_to_first_chunk": 0.5,
        "hexsage.backend": "b",
        "hexsage.outcome": "completed",
    }.items() <= call.attributes.items()
    assert upstream.attributes["hexsage.backend"] == "b"
    assert upstream.attributes["hexsage.attempt"] == 1
    assert call.error is None


def test_every_attempt_is_seen_and_every_wait_between() -> None:
    story = Story("a", "b")
    story.arrives(0.0, a_request("r"), None)
    first = story.upstream("r")
    story.at(1.0, Failed(RequestId("r"), FailureKind.RESET, retryable=True))
    second = story.upstream("r")
    story.at(2.0, Finished(RequestId("r"), 10))

    attempts = story.kept.named("upstream")
    assert [span.context for span in attempts] == [first, second]
    assert [span.error for span in attempts] == ["reset", None]
    assert [span.attributes["hexsage.attempt"] for span in attempts] == [1, 2]
    assert attempts[0].attributes["hexsage.backend"] != attempts[1].attributes["hexsage.backend"]
    assert len(story.kept.named("queue")) == 2
    (call,) = story.kept.named("chat m1")
    assert call.attributes["hexsage.attempts"] == 2
    assert call.error is None


def test_the_calls_of_a_workflow_share_a_trace_whose_root_ends_with_it() -> None:
    story = Story()
    for number, at in enumerate((0.0, 5.0)):
        name = f"r{number}"
        story.arrives(at, a_request(name, workflow=a_workflow("w", stage=f"s{number}")), None)
        story.at(at + 1.0, Finished(RequestId(name), 10))
    assert story.kept.named("invoke_workflow t") == []
    story.at(6.5, WorkflowCompleted(WorkflowKey(ANONYMOUS, "w")))

    calls = story.kept.named("chat m1")
    (root,) = story.kept.named("invoke_workflow t")
    assert root.parent is None
    assert [call.parent for call in calls] == [root.context, root.context]
    assert {span.context.trace_id for span in story.kept.spans} == {root.context.trace_id}
    assert (root.began_at_ns, root.ended_at_ns) == (EPOCH_NS, EPOCH_NS + 6_500_000_000)
    assert root.attributes["gen_ai.workflow.name"] == "t"
    assert root.attributes["hexsage.workflow.calls"] == 2
    assert [call.attributes["hexsage.workflow.stage"] for call in calls] == ["s0", "s1"]


def test_a_call_stands_below_its_clients_span_and_the_engine_below_the_attempt() -> None:
    story = Story()
    story.arrives(0.0, a_request("r"), CLIENT)
    told = story.upstream("r")
    story.at(1.0, Finished(RequestId("r"), 10))

    (call,) = story.kept.named("chat m1")
    assert call.parent == CLIENT
    assert told.trace_id == CLIENT.trace_id
    assert told.span_id not in (CLIENT.span_id, call.context.span_id)


def test_a_workflow_is_traced_where_its_client_began() -> None:
    second, foreign = TraceContext(CLIENT.trace_id, 0xCCCC), TraceContext(0xDDDD, 0xEEEE)
    story = Story()
    for number, client in enumerate((CLIENT, second, foreign)):
        name = f"r{number}"
        story.arrives(float(number), a_request(name, workflow=a_workflow("w")), client)
        story.at(number + 0.5, Finished(RequestId(name), 10))
    story.at(9.0, WorkflowCompleted(WorkflowKey(ANONYMOUS, "w")))

    (root,) = story.kept.named("invoke_workflow t")
    calls = story.kept.named("chat m1")
    assert {span.context.trace_id for span in story.kept.spans} == {CLIENT.trace_id}
    assert root.parent == CLIENT
    assert [call.parent for call in calls] == [CLIENT, second, root.context]
    assert [call.links for call in calls] == [(root.context,), (root.context,), (foreign,)]


def test_who_is_refused_or_leaves_has_a_span_too() -> None:
    story = Story()
    story.arrives(0.0, a_request("lost", model="nobody's", workflow=a_workflow("w")), None)
    story.arrives(1.0, a_request("left"), None)
    story.at(2.0, Abandoned(RequestId("left")))

    (refused,) = story.kept.named("chat nobody's")
    assert refused.error == "model_not_found"
    assert "gen_ai.usage.input_tokens" not in refused.attributes
    assert refused.attributes["gen_ai.provider.name"] == "hexsage"
    (left,) = story.kept.named("chat m1")
    assert (left.error, left.attributes["hexsage.outcome"]) == (None, "abandoned")
    assert [span.error for span in story.kept.named("upstream")] == [None]


def test_a_client_that_is_not_traced_keeps_its_own_header() -> None:
    unsampled = TraceContext(0xAAAA, 0xBBBB, is_sampled=False)
    story = Story()
    story.arrives(0.0, a_request("r"), unsampled)

    assert story.upstream("r") == unsampled
    story.at(1.0, Finished(RequestId("r"), 10))
    assert story.kept.spans == []


def test_engines_are_told_when_nobody_keeps_a_trace() -> None:
    story = Story(samples=False)
    story.arrives(0.0, a_request("r", workflow=a_workflow("w", final=True)), None)

    assert not story.upstream("r").is_sampled
    story.at(1.0, Finished(RequestId("r"), 10))
    assert story.kept.spans == []


def test_what_is_open_when_the_gateway_stops_is_sent_as_far_as_it_got() -> None:
    story = Story()
    story.arrives(0.0, a_request("r", workflow=a_workflow("w")), None)
    story.at(1.0, Finished(RequestId("r"), 10))
    story.tracing.close(3.0)

    (root,) = story.kept.named("invoke_workflow t")
    assert root.attributes["hexsage.workflow.state"] == "open"
    assert root.ended_at_ns == EPOCH_NS + 3_000_000_000


def test_nothing_is_remembered_of_what_is_over() -> None:
    story = Story()
    for number in range(MAX_INTRODUCED + 10):
        story.tracing.introduce(RequestId(f"never-{number}"), CHAT, "")
    story.arrives(0.0, a_request("r", workflow=a_workflow("w", final=True)), None)
    story.at(1.0, Finished(RequestId("r"), 10))

    held = vars(story.tracing)
    assert held["_calls"] == held["_workflows"] == {}
    assert len(held["_introduced"]) < MAX_INTRODUCED
    assert story.tracing.traceparent(RequestId("r")) is None
