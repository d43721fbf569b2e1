"""Traces of a gateway that runs: off unless they are asked for, whole when they are."""

import subprocess
import sys

import pytest

from gateway.config.serving import TelemetryEntry
from gateway.mistakes import ConfigError
from gateway.traces import are_wanted, exporter_of
from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, plain
from tests.telemetry.collector import a_collector, attributes

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.anyio
async def test_a_request_is_traced_from_its_client_to_its_engine() -> None:
    with a_collector() as collector:
        telemetry = {"endpoint": collector.url}
        async with (
            a_fake_backend(plain) as engine,
            a_gateway(engine, telemetry=telemetry) as gw,
        ):
            said = {
                "traceparent": PARENT,
                "tracestate": "a=1",
                "x-workflow-id": "question-42",
                "x-workflow-name": "text2sql",
                "x-workflow-stage": "schema_linking",
                "x-workflow-final": "true",
            }
            reply = await gw.post(chat("a prompt that nobody may read"), headers=said)
            assert reply.status == 200
            upstream = engine.calls[0].headers

        spans = collector.spans
        assert {"chat m1", "queue", "upstream", "invoke_workflow text2sql"} <= spans.keys()
        assert {span.trace_id.hex() for span in spans.values() if span.name != "chat m1"} >= {
            PARENT[3:35]
        }
        workflow = attributes(spans["invoke_workflow text2sql"])
        assert workflow["hexsage.workflow.id"] == "question-42"
        assert b"a prompt that nobody may read" not in collector.bodies
    version, trace_id, span_id, flags = upstream["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", PARENT[3:35], "01")
    assert span_id != PARENT[36:52]
    assert upstream["tracestate"] == "a=1"


@pytest.mark.anyio
async def test_tracestate_stays_with_its_own_trace() -> None:
    other = PARENT.replace("0af7", "1bf7")
    with a_collector() as collector:
        async with (
            a_fake_backend(plain) as engine,
            a_gateway(engine, telemetry={"endpoint": collector.url}) as gw,
        ):
            for parent in (PARENT, other):
                said = {"traceparent": parent, "tracestate": "a=1", "x-workflow-id": "w"}
                await gw.post(chat(), headers=said)
            first, second = (call.headers for call in engine.calls)

    assert first["traceparent"][:35] == second["traceparent"][:35] == PARENT[:35]
    assert (first.get("tracestate"), second.get("tracestate")) == ("a=1", None)


@pytest.mark.anyio
async def test_without_a_collector_nothing_watches_and_headers_pass_as_they_come() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat(), headers={"traceparent": PARENT})

        assert engine.calls[0].headers["traceparent"] == PARENT
        assert gw.gateway.traces.observers == []
        assert gw.gateway.register.introduce is None


@pytest.mark.parametrize(
    ("environment", "is_wanted"),
    [
        pytest.param({}, False, id="off"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True, id="on"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, True, id="for traces"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
            False,
            id="disabled",
        ),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
            False,
            id="no exporter",
        ),
    ],
)
def test_the_environment_turns_traces_on_and_off(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_wanted: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert are_wanted(TelemetryEntry()) is is_wanted


def test_a_file_that_wants_traces_needs_the_extra_and_the_environment_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "gateway.telemetry.otlp", None)

    with pytest.raises(ConfigError, match=r"telemetry\.endpoint.*hexsage\[otel\]"):
        exporter_of(TelemetryEntry(endpoint="http://127.0.0.1:4318"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert exporter_of(TelemetryEntry()) is None
    assert "hexsage[otel]" in caplog.text


def test_without_traces_opentelemetrys_sdk_is_not_even_loaded() -> None:
    # Its API is: FastAPI looks for it.
    code = "import sys, gateway.app; sys.exit('opentelemetry.sdk' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
