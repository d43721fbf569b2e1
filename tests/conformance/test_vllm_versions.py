"""vLLM 0.6.3, 0.8.5, 0.11 and 0.33 differ on the wire, and not behind the gateway.

The answers are canned, by the sources of those versions.
"""

import json
from dataclasses import dataclass

import pytest

from gateway.backends.engine_metrics import EngineMetrics, read_metrics
from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    WHOLE,
    Exchange,
    Script,
    a_fake_backend,
    answers,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio

TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
DRAINING = "cannot schedule new futures after shutdown"
DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True)
class Version:
    """What one version says."""

    name: str
    is_flat: bool
    refuses_priority: str | None
    metrics: str

    def error(self, status: int, message: str, kind: str) -> bytes:
        """An error body."""
        said = {"message": message, "type": kind, "param": None, "code": status}
        return json.dumps({"object": "error", **said} if self.is_flat else {"error": said}).encode()


OLD_METRICS = """\
vllm:num_requests_running{model_name="m1"} 2.0
vllm:num_requests_waiting{model_name="m1"} 3.0
vllm:num_requests_swapped{model_name="m1"} 0.0
vllm:gpu_cache_usage_perc{model_name="m1"} 0.25
vllm:cpu_cache_usage_perc{model_name="m1"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",swap_space_bytes="4294967296"} 1.0
"""
NEW_METRICS = """\
vllm:num_requests_running{engine="0",model_name="m1"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m1"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m1",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m1"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
"""
VERSIONS = (
    Version("0.6.3", True, "Got priority 0 but Priority scheduling is not enabled.", OLD_METRICS),
    Version("0.8.5", True, "V1 does not support priority yet.", OLD_METRICS),
    Version("0.11.0", False, None, NEW_METRICS.replace("_by_reason", "_ignored")),
    Version("0.33.0", False, None, NEW_METRICS),
)
each_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
streaming = pytest.mark.parametrize("stream", [False, True])


@each_version
def test_metrics_of_both_generations_say_the_same(version: Version) -> None:
    assert read_metrics(version.metrics) == EngineMetrics(2, 3, 0.25, 1600)


@each_version
@streaming
async def test_an_error_has_one_shape(version: Version, stream: bool) -> None:
    body = version.error(400, TOO_LONG, "BadRequestError")
    async with (
        a_fake_backend(answers(body, "400 Bad Request")) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post(chat(stream=stream))

        assert reply.status == 400
        assert reply.error == {
            "message": TOO_LONG,
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
        assert len(engine.calls) == 1


@each_version
@streaming
async def test_a_priority_is_sent_until_it_is_refused(version: Version, stream: bool) -> None:
    async def script(exchange: Exchange) -> None:
        if version.refuses_priority and "priority" in exchange.seen.json:
            body = version.error(400, version.refuses_priority, "BadRequestError")
            await exchange.answer(body, status="400 Bad Request")
        else:
            await plain(exchange)

    async with (
        a_fake_backend(script) as engine,
        a_gateway(engine, backends=[{"priority_scheduling": True}]) as gw,
    ):
        replies = [await gw.post(chat(stream=stream)) for _ in range(2)]

        assert [reply.status for reply in replies] == [200, 200]
        sent = ["priority" in seen.json for seen in engine.calls]
        assert sent == ([True, False, False] if version.refuses_priority else [True, True])
        assert gw.settled() == {("completed", ""): 2}


@each_version
@streaming
async def test_a_draining_engine_is_passed_over(version: Version, stream: bool) -> None:
    """It answers 500, and its /health is still 200."""
    body = version.error(500, DRAINING, "InternalServerError")
    async with (
        a_fake_backend(answers(body, "500 Internal Server Error")) as draining,
        a_fake_backend(plain) as engine,
        a_gateway(draining, engine) as gw,
    ):
        replies = [await gw.post(chat(stream=stream)) for _ in range(4)]

        assert [reply.status for reply in replies] == [200] * 4
        assert draining.calls
        assert len(engine.calls) == 4


DIED_EVENT = b"data: " + VERSIONS[-1].error(500, DIED, "InternalServerError") + b"\n\n"
ABORTED = json.loads(WHOLE)
ABORTED["choices"][0]["finish_reason"] = "abort"


@pytest.mark.parametrize(
    ("script", "stream"),
    [
        pytest.param(streams(DIED_EVENT, DONE), True, id="an error event first"),
        pytest.param(streams(frame("", "abort"), DONE), True, id="aborted before a token"),
        pytest.param(answers(json.dumps(ABORTED).encode()), False, id="aborted, not streamed"),
    ],
)
async def test_an_answer_that_ends_before_it_is_seen_is_had_elsewhere(
    script: Script, stream: bool
) -> None:
    async with (
        a_fake_backend(script) as dying,
        a_fake_backend(plain) as engine,
        a_gateway(dying, engine) as gw,
    ):
        replies = [await gw.post(chat(stream=stream)) for _ in range(2)]

        assert [reply.status for reply in replies] == [200, 200]
        assert all(b"abort" not in reply.body for reply in replies)
        assert dying.calls
        assert len(engine.calls) == 2


@pytest.mark.parametrize(
    ("last", "message"),
    [
        pytest.param(DIED_EVENT, DIED, id="died"),
        pytest.param(frame("", "abort"), "(abort)", id="aborted"),
    ],
)
async def test_an_answer_that_ends_early_says_so_and_is_not_done(last: bytes, message: str) -> None:
    async with (
        a_fake_backend(streams(ROLE, frame("a"), last, DONE)) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert reply.status == 200
        assert reply.body.startswith(ROLE + frame("a"))
        *_, error = reply.events
        assert message in json.loads(error)["error"]["message"]
        assert b"[DONE]" not in reply.body
        assert gw.settled() == {("failed", "server_error"): 1}
