"""Spans on their way to a collector."""

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from gateway.telemetry.otlp import OtlpExporter
from gateway.telemetry.spans import Kind, Span
from gateway.telemetry.traceparent import TraceContext
from tests.telemetry.collector import a_collector, attributes

PARENT = TraceContext(0xAA, 0xBB)
LINK = TraceContext(0xEE, 0xFF)


def a_span(name: str = "chat m1", *, is_sampled: bool = True, error: str | None = None) -> Span:
    """Two seconds of something."""
    return Span(
        name=name,
        kind=Kind.SERVER,
        context=TraceContext(0xAA, 0xCC, is_sampled),
        parent=PARENT,
        began_at_ns=1_000_000_000,
        ended_at_ns=3_000_000_000,
        attributes={"gen_ai.request.model": "m1", "hexsage.attempts": 2},
        error=error,
        links=(LINK,),
    )


def test_a_collector_gets_spans_as_they_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret-of-the-collector")
    with a_collector() as collector:
        exporter = OtlpExporter(f"{collector.url}/")
        exporter.export(a_span(error="reset"))
        exporter.close()

        span = collector.spans["chat m1"]
        (headers,) = collector.headers
    assert span.trace_id.hex() == f"{0xAA:032x}"
    assert (span.span_id.hex(), span.parent_span_id.hex()) == (f"{0xCC:016x}", f"{0xBB:016x}")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (10**9, 3 * 10**9)
    assert span.kind == ProtoSpan.SPAN_KIND_SERVER
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert [link.span_id.hex() for link in span.links] == [f"{0xFF:016x}"]
    assert attributes(span) == {
        "gen_ai.request.model": "m1",
        "hexsage.attempts": 2,
        "error.type": "reset",
    }
    assert headers["authorization"] == "secret-of-the-collector"


@pytest.mark.parametrize(("named", "name"), [(None, "hexsage"), ("edge", "edge")])
def test_the_service_has_the_name_that_the_environment_gives_it(
    monkeypatch: pytest.MonkeyPatch, named: str | None, name: str
) -> None:
    if named is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", named)
    with a_collector() as collector:
        exporter = OtlpExporter(collector.url)
        exporter.export(a_span())
        exporter.close()

        (sent,) = collector.resources
    resource = {item.key: item.value.string_value for item in sent.resource.attributes}
    assert resource["service.name"] == name


def test_what_is_not_sampled_is_not_sent() -> None:
    with a_collector() as collector:
        exporter = OtlpExporter(collector.url)
        exporter.export(a_span(is_sampled=False))
        exporter.close()

        assert collector.resources == []


def test_the_client_decides_on_sampling_and_the_environment_where_it_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with a_collector() as collector:
        exporter = OtlpExporter(collector.url)
        verdicts = [
            exporter.samples(parent, 0xAA, "chat m1")
            for parent in (None, PARENT, PARENT._replace(is_sampled=False))
        ]
        exporter.close()

    assert verdicts == [False, True, False]


def test_a_collector_that_is_not_there_costs_the_spans_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with a_collector() as collector:
        url = collector.url
    exporter = OtlpExporter(url)
    for number in range(100):
        exporter.export(a_span(f"span {number}"))
    exporter.close()
