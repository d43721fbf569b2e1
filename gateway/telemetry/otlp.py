"""OtlpExporter: spans to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`.

The SDK does the sending: in batches, by a thread of its own, from a bounded queue. What does not
fit there is dropped. All of it is set by the variables that every OpenTelemetry SDK knows, such as
OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER and OTEL_BSP_MAX_QUEUE_SIZE.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gateway import __version__
from gateway.telemetry.spans import Kind, Span
from gateway.telemetry.traceparent import TraceContext

_KINDS: Mapping[Kind, SpanKind] = {
    Kind.SERVER: SpanKind.SERVER,
    Kind.CLIENT: SpanKind.CLIENT,
    Kind.INTERNAL: SpanKind.INTERNAL,
}
_SCOPE = InstrumentationScope("hexsage", __version__)


class OtlpExporter:
    """Sends spans to a collector. An Exporter, on one event loop; `close` may wait."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint` is a collector's base URL; None: as the environment says."""
        url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
        self._resource = _resource()
        # Nothing is traced through the provider; it knows what the environment says of sampling.
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        sender = OTLPSpanExporter(endpoint=url)
        self._batches = BatchSpanProcessor(_Translating(sender, self._resource))

    def samples(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        """See Exporter."""
        known = None
        if parent is not None:
            known = set_span_in_context(NonRecordingSpan(_context(parent, is_remote=True)))
        decision = self._sampler.should_sample(known, trace_id, name).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def export(self, span: Span) -> None:
        """See Exporter."""
        self._batches.on_end(_Untranslated(span))

    def close(self) -> None:
        """Send what is left, or give up after the exporter's own time limits."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # as it comes


class _Untranslated(ReadableSpan):
    """A span as the batches' queue takes it: what it takes to translate it is not spent on the
    event loop."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._place = _context(span.context)

    @property
    def context(self) -> SpanContext:
        """What the queue asks for: whether the span is sampled."""
        return self._place


class _Translating(SpanExporter):
    """Makes spans what the SDK calls spans, on the thread that sends them."""

    def __init__(self, sender: SpanExporter, resource: Resource) -> None:
        self._sender = sender
        self._resource = resource

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        return self._sender.export(
            [self._translated(entry.span) for entry in spans if isinstance(entry, _Untranslated)]
        )

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._sender.shutdown()

    def _translated(self, span: Span) -> ReadableSpan:
        attributes = dict(span.attributes)
        if span.error is not None:
            attributes["error.type"] = span.error
        return ReadableSpan(
            span.name,
            _context(span.context),
            _context(span.parent) if span.parent else None,
            self._resource,
            attributes,
            links=[Link(_context(link)) for link in span.links],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
            start_time=span.began_at_ns,
            end_time=span.ended_at_ns,
            instrumentation_scope=_SCOPE,
        )


def _resource() -> Resource:
    resource = Resource.create({SERVICE_VERSION: __version__})
    is_named = not str(resource.attributes[SERVICE_NAME]).startswith("unknown_service")
    # What the environment calls it goes before our own name.
    return resource if is_named else resource.merge(Resource({SERVICE_NAME: "hexsage"}))


def _context(context: TraceContext, *, is_remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote, flags)
