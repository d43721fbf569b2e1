"""Tests of loadgen.runner against a server on loopback; nothing in them sleeps to be in time."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from gateway.sim.trace import TraceWorkflow
from loadgen.plan import build
from loadgen.records import OK, Run
from loadgen.runner import Target, run
from tests.loadgen.builders import a_trace_call, a_trace_workflow
from tests.loadgen.stub_server import Answering, StubServer, answer_at_once, completion, stub_server

FAST = 10_000.0
"""Engines so fast that no instant of a plan is waited for noticeably."""


async def fire(
    stub: StubServer, *workflows: TraceWorkflow, instants: list[float] | None = None, **target: Any
) -> Run:
    plan = build(workflows, instants or [0.0] * len(workflows), seed=1, qps=None, deadline_s=60.0)
    into = Run(policy="p", qps=None, seed=1, plan=plan.digest, planned=len(workflows))
    aimed = Target(url=stub.url, model="m1", headers={}, **({"speed": FAST} | target))
    async with aimed.session() as session:
        await run(plan, aimed, session, into, run_id="run")
    return into


def fired(
    *workflows: TraceWorkflow, answering: Answering = answer_at_once, **target: Any
) -> tuple[StubServer, Run]:
    async def go() -> tuple[StubServer, Run]:
        async with stub_server(answering) as stub:
            return stub, await fire(stub, *workflows, **target)

    return asyncio.run(go())


def test_calls_of_a_step_go_together_and_the_next_step_waits_for_all() -> None:
    both_here = asyncio.Barrier(2)
    answered: list[str] = []

    async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        stage = request.headers["x-workflow-stage"]
        if stage == "pair":
            # Answered only once both are here: one after the other would wait for ever.
            await both_here.wait()
        else:
            assert answered == ["pair", "pair"]
        answered.append(stage)
        return completion(body)

    workflow = a_trace_workflow([a_trace_call("pair")] * 2, [a_trace_call("last")])
    stub, result = fired(workflow, answering=answering)

    assert stub.stages() == ["pair", "pair", "last"]
    assert [call.outcome for call in result.calls] == [OK] * 3
    assert result.workflows[0].outcome == OK


def test_workflows_start_when_due_however_many_are_still_running() -> None:
    all_here = asyncio.Barrier(20)

    async def answering(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await all_here.wait()
        return completion(body)

    _, result = fired(*[a_trace_workflow()] * 20, answering=answering)

    assert [workflow.outcome for workflow in result.workflows] == [OK] * 20


def test_a_call_says_which_workflow_stage_and_deadline_it_belongs_to() -> None:
    workflow = a_trace_workflow([a_trace_call("first", output_tokens=17)], [a_trace_call("last")])
    stub, _ = fired(workflow, speed=20.0)

    (first, body), (last, _) = stub.calls
    assert first["x-workflow-id"] == last["x-workflow-id"] == "run-w0"
    assert first["x-request-id"] != last["x-request-id"]
    assert first["x-workflow-name"] == "drafting"
    assert first["x-workflow-stage"] == "first"
    # 60 engine seconds are 3 s of a clock on the wall when engines are 20 times faster.
    assert first["x-workflow-deadline-ms"] == "3000"
    assert "x-workflow-final" not in first
    assert last["x-workflow-final"] == "true"
    assert body["model"] == "m1"
    assert body["vllm_xargs"] == {"out_len": 17}
    assert body["max_tokens"] == 64
    assert "stream" not in body


def test_real_engines_decide_lengths_themselves() -> None:
    stub, _ = fired(a_trace_workflow(), sets_lengths=False)

    assert "vllm_xargs" not in stub.calls[0][1]


def test_times_are_engine_seconds_and_tools_take_their_time() -> None:
    workflow = a_trace_workflow([a_trace_call()], [a_trace_call()], tool_s=500.0)
    _, result = fired(workflow)

    first, second = result.calls
    assert first.due_at_s == 500.0
    assert second.due_at_s >= first.ended_at_s + 500.0
    assert 0 <= second.lag_s < 1000.0
    assert result.workflows[0].latency_s >= 1000.0


def test_a_failed_call_ends_its_workflow_after_the_step() -> None:
    async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.headers["x-request-id"].endswith("-1"):
            error = {"message": "full", "code": "queue_full", "type": "x", "param": None}
            return web.json_response({"error": error}, status=503)
        return completion(body)

    workflow = a_trace_workflow([a_trace_call("pair")] * 2, [a_trace_call("never")])
    stub, result = fired(workflow, answering=answering)

    assert stub.stages() == ["pair", "pair"]
    assert {call.outcome for call in result.calls} == {OK, "http_503 queue_full"}
    assert result.workflows[0].outcome == "http_503 queue_full"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(web.Response(text="hello"), "bad_answer", id="not JSON"),
        pytest.param(web.json_response({"choices": []}), "bad_answer", id="no usage"),
        pytest.param(web.Response(text="x", status=502), "http_502", id="a proxy's error"),
    ],
)
def test_what_is_not_a_completion_is_a_failure(answer: web.Response, outcome: str) -> None:
    async def answering(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return answer

    _, result = fired(a_trace_workflow(), answering=answering)

    assert result.calls[0].outcome == outcome


def test_a_connection_that_breaks_is_a_reset() -> None:
    async def answering(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    _, result = fired(a_trace_workflow(), answering=answering)

    assert result.calls[0].outcome == "reset"


def test_a_server_that_is_not_there_is_named_so() -> None:
    result = asyncio.run(fire(StubServer(url="http://127.0.0.1:1"), a_trace_workflow()))

    assert result.calls[0].outcome == "connect"


def test_a_call_that_takes_too_long_is_given_up() -> None:
    async def answering(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return completion(body)

    _, result = fired(a_trace_workflow(), answering=answering, timeout_s=0.05, speed=1.0)

    assert result.calls[0].outcome == "timeout"


def events(*texts: str) -> Answering:
    async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text in texts:
            await response.write(f"data: {text}\n\n".encode())
        return response

    return answering


CONTENT = '{"choices":[{"delta":{"content":"x"}}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}'


def test_streams_give_first_token_times_and_usage() -> None:
    _, result = fired(
        a_trace_workflow(), answering=events(CONTENT, CONTENT, USAGE, "[DONE]"), is_streaming=True
    )

    call = result.calls[0]
    assert call.outcome == OK
    assert call.first_token_at_s is not None
    assert call.sent_at_s < call.first_token_at_s <= call.ended_at_s
    assert call.longest_gap_s is not None
    assert (call.usage_prompt_tokens, call.usage_output_tokens) == (9, 2)


@pytest.mark.parametrize(
    ("texts", "outcome"),
    [
        pytest.param((CONTENT,), "truncated", id="no [DONE]"),
        pytest.param(
            (CONTENT, '{"error":{"code":"backend_failed"}}'),
            "in_stream backend_failed",
            id="an error after the first byte",
        ),
    ],
)
def test_a_stream_that_breaks_off_is_a_failure(texts: tuple[str, ...], outcome: str) -> None:
    _, result = fired(a_trace_workflow(), answering=events(*texts), is_streaming=True)

    assert result.calls[0].outcome == outcome


def test_what_ended_before_an_interruption_is_kept() -> None:
    async def go() -> Run:
        first_done = asyncio.Event()

        async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if request.headers["x-workflow-id"] == "run-w1":
                first_done.set()
                await asyncio.Event().wait()
            return completion(body)

        async with stub_server(answering) as stub:
            plan = build([a_trace_workflow()] * 2, [0.0, 5000.0], seed=1, qps=None, deadline_s=60.0)
            into = Run(policy="p", qps=None, seed=1, plan="", planned=2)
            target = Target(url=stub.url, model="m1", headers={}, speed=FAST)
            async with target.session() as session:
                running = asyncio.ensure_future(run(plan, target, session, into, run_id="run"))
                await first_done.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
        return into

    assert [workflow.id for workflow in asyncio.run(go()).workflows] == ["w0"]
