"""An emulated engine in virtual time: what it serves is what EngineModel says, when it says so."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.profiles import PROFILES
from gateway.emulator.options import EngineOptions
from gateway.emulator.server import EngineServer
from gateway.emulator.vllm_requests import read_chat
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, FinishedAt, FirstTokenAt
from tests.emulator.asgi import CHAT, Answer, a_chat, call, content, some_options
from tests.virtual_time import run_in_virtual_time, sleep_until

SMALL = replace(PROFILES["A6000"], kv_tokens=3200, max_num_seqs=6, max_batched_tokens=1024)
JSON = {b"content-type": b"application/json"}


async def metric(server: EngineServer, name: str) -> float:
    """Read one sample of the metrics page."""
    page = (await call(server, "/metrics")).body.decode()
    [value] = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    ]
    return value


async def at_once(*calls: Coroutine[Any, Any, Answer]) -> list[Answer]:
    """Run calls together."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one) for one in calls]
    return [task.result() for task in started]


def some_calls(count: int) -> list[tuple[float, dict[str, object]]]:
    """Return calls at distinct instants that overfill SMALL, and share prefixes."""
    random = Random(5)
    calls: list[tuple[float, dict[str, object]]] = []
    at = 0.0
    for number in range(count):
        at += random.uniform(0.01, 3.0)
        messages = [
            {"role": "system", "content": f"template {number % 3} " * 150},
            {"role": "user", "content": f"question {number} " * random.randint(1, 300)},
        ]
        body = a_chat(
            out_len=random.randint(1, 300),
            messages=messages,
            priority=random.randint(0, 3),
            stream=number % 2 == 0,
            stream_options={"include_usage": True} if number % 2 == 0 else None,
        )
        calls.append((at, body))
    return calls


def modelled(
    calls: list[tuple[float, dict[str, object]]], options: EngineOptions
) -> tuple[dict[str, FirstTokenAt], dict[str, FinishedAt]]:
    """Give the same calls to the bare model: engine seconds are wall seconds times speed."""
    model = EngineModel(options.profile, priority_scheduling=options.priority_scheduling)
    firsts: dict[str, FirstTokenAt] = {}
    ends: dict[str, FinishedAt] = {}

    def note(now: float) -> None:
        for event in model.advance(now):
            if isinstance(event, FirstTokenAt):
                firsts[event.call_id] = event
            else:
                ends[event.call_id] = event

    for number, (at, body) in enumerate(calls):
        ask = read_chat(JSON, orjson.dumps(body), options, fresh_id="", created=0)
        [choice] = ask.choices
        engine_call = EngineCall(
            str(number), choice.prompt_tokens, choice.output_tokens, choice.prefix, ask.priority
        )
        assert model.submit(engine_call, at * options.speed)
        note(at * options.speed)
    while (next_at := model.next_event_at()) is not None:
        note(next_at)
    assert model.preemptions > 0
    return firsts, ends


def test_the_served_engine_is_the_modelled_engine() -> None:
    options = some_options(SMALL, speed=20.0, priority_scheduling=True)
    calls = some_calls(60)
    firsts, ends = modelled([(at / 20, body) for at, body in calls], options)

    async def serve() -> tuple[list[Answer], float]:
        server = EngineServer(options)

        async def one(at: float, body: dict[str, object]) -> Answer:
            await sleep_until(at / 20)
            return await call(server, CHAT, body)

        answers = await at_once(*(one(at, body) for at, body in calls))
        return answers, await metric(server, "vllm:num_preemptions_total")

    answers, preemptions = run_in_virtual_time(serve())

    assert preemptions == sum(end.preemptions for end in ends.values())
    for number, answer in enumerate(answers):
        end = ends[str(number)]
        assert answer.ended_at == pytest.approx(end.at / 20, abs=1e-6)
        if answer.headers[b"content-type"].startswith(b"text/event-stream"):
            assert answer.chunks[0][0] == pytest.approx(firsts[str(number)].at / 20, abs=1e-6)
            usage = answer.events[-2]["usage"]
            assert len(content(answer.events).split()) == end.output_tokens
        else:
            usage = answer.json["usage"]
        assert usage["completion_tokens"] == end.output_tokens
        assert usage["prompt_tokens_details"]["cached_tokens"] == end.cached_tokens


def test_tokens_stream_as_the_engine_steps() -> None:
    async def serve() -> Answer:
        server = EngineServer(some_options(min_chunk_s=0.0))
        return await call(server, CHAT, a_chat(out_len=40, stream=True))

    answer = run_in_virtual_time(serve())

    assert len(answer.chunks) == 40
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(answer.chunks)]
    assert min(gaps) == pytest.approx(0.0223, rel=0.01) == max(gaps)


def test_tokens_that_come_too_fast_are_merged() -> None:
    async def serve() -> Answer:
        server = EngineServer(some_options(speed=20.0, min_chunk_s=0.01))
        return await call(server, CHAT, a_chat(out_len=400, stream=True))

    answer = run_in_virtual_time(serve())

    seconds = answer.chunks[-1][0] - answer.chunks[0][0]
    assert 0.8 * seconds / 0.01 < len(answer.chunks) < seconds / 0.01 + 2
    assert len(content(answer.events).split()) == 400


def test_tokens_are_merged_when_the_reader_lags() -> None:
    async def serve() -> Answer:
        server = EngineServer(some_options(min_chunk_s=0.0))
        return await call(server, CHAT, a_chat(out_len=400, stream=True), chunk_s=1.0)

    answer = run_in_virtual_time(serve())

    assert len(answer.chunks) == 10  # one a second, in a run of 9
    assert len(content(answer.events).split()) == 400


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_takes_its_work_along(is_stream: bool) -> None:
    async def serve() -> None:
        server = EngineServer(some_options())
        leaving = call(server, CHAT, a_chat(out_len=4000, stream=is_stream), leaves_after_s=2.0)
        answer = (await at_once(leaving))[0]

        assert answer.ended_at is None
        await sleep_until(2.03)  # the step under way is over
        assert await metric(server, "vllm:num_requests_running") == 0
        assert 80 < await metric(server, "vllm:generation_tokens_total") < 100

    run_in_virtual_time(serve())


def test_a_client_that_leaves_the_queue_is_not_served() -> None:
    async def serve() -> None:
        server = EngineServer(some_options(replace(SMALL, max_num_seqs=1)))
        stays = call(server, CHAT, a_chat(out_len=100))
        leaves = call(server, CHAT, a_chat(out_len=100), leaves_after_s=1.0)
        await at_once(stays, leaves)

        assert await metric(server, "vllm:generation_tokens_total") == 100

    run_in_virtual_time(serve())


def test_a_full_queue_refuses_with_503_or_in_the_stream() -> None:
    async def serve() -> None:
        server = EngineServer(some_options(max_num_queued_reqs=2))
        held = [call(server, CHAT, a_chat(out_len=100)) for _ in range(2)]
        whole = call(server, CHAT, a_chat())
        streamed = call(server, CHAT, a_chat(stream=True))
        *ok, refused, in_stream = await at_once(*held, whole, streamed)

        assert [answer.status for answer in ok] == [200, 200]
        assert refused.status == 503
        assert refused.json["error"]["type"] == "Service Unavailable"
        assert in_stream.status == 200
        assert in_stream.events == [refused.json, "[DONE]"]
        page = (await call(server, "/metrics")).body
        assert b'reason="max_num_queued_reqs"} 2.0' in page
        assert (await call(server, CHAT, a_chat())).status == 200

    run_in_virtual_time(serve())


def test_several_choices_are_refused_or_taken_together() -> None:
    async def serve() -> None:
        server = EngineServer(some_options(max_num_queued_reqs=2))

        assert (await call(server, CHAT, a_chat(n=3))).status == 503
        assert len((await call(server, CHAT, a_chat(n=2))).json["choices"]) == 2

    run_in_virtual_time(serve())


def test_a_stop_ends_what_is_running_with_what_it_has() -> None:
    async def serve() -> tuple[Answer, Answer, Answer]:
        server = EngineServer(some_options())

        async def stop() -> Answer:
            await sleep_until(1.0)
            server.engine.stop()
            return await call(server, CHAT, a_chat())

        whole = call(server, CHAT, a_chat(out_len=1000))
        streamed = call(server, CHAT, a_chat(out_len=1000, stream=True))
        one, two, three = await at_once(whole, streamed, stop())
        return one, two, three

    whole, streamed, late = run_in_virtual_time(serve())

    assert whole.json["choices"][0]["finish_reason"] == "abort"
    assert 30 < whole.json["usage"]["completion_tokens"] < 50
    assert streamed.events[-2]["choices"][0]["finish_reason"] == "abort"
    assert streamed.events[-1] == "[DONE]"
    assert whole.ended_at == streamed.ended_at == 1.0
    assert late.status == 500
    assert late.json["error"]["message"] == "cannot schedule new futures after shutdown"


# -- faults


async def order(server: EngineServer, **faults: object) -> Answer:
    """Order faults."""
    return await call(server, "/emulator/faults", faults)


def test_a_stalled_engine_does_nothing_and_is_healthy() -> None:
    async def serve() -> Answer:
        server = EngineServer(some_options(allow_faults=True))

        async def stall() -> Answer:
            await sleep_until(1.0)
            await order(server, stall=True)
            health = await call(server, "/health")
            await sleep_until(61.0)
            await order(server)
            return health

        answer, health = await at_once(call(server, CHAT, a_chat(out_len=100)), stall())
        assert health.status == 200
        return answer

    answer = run_in_virtual_time(serve())

    assert answer.ended_at is not None
    assert 62 < answer.ended_at < 63


def test_a_slow_engine_is_slow() -> None:
    async def serve() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        server = EngineServer(some_options(allow_faults=True))
        await call(server, CHAT, a_chat(out_len=100))
        normal_s = loop.time()
        await order(server, slow=4)
        await call(server, CHAT, a_chat(out_len=100))
        return normal_s, loop.time() - normal_s

    normal_s, slow_s = run_in_virtual_time(serve())

    assert slow_s == pytest.approx(4 * normal_s, rel=0.01)


def test_a_crash_fails_what_is_running_and_nothing_else() -> None:
    async def serve() -> list[Answer]:
        server = EngineServer(some_options(allow_faults=True))

        async def crash() -> Answer:
            await sleep_until(1.0)
            await order(server, crash=True)
            return await call(server, CHAT, a_chat())

        whole = call(server, CHAT, a_chat(out_len=1000))
        streamed = call(server, CHAT, a_chat(out_len=1000, stream=True))
        return await at_once(whole, streamed, crash())

    whole, streamed, later = run_in_virtual_time(serve())

    assert whole.status == 500
    assert whole.json["error"]["message"].startswith("EngineCore encountered an issue")
    assert streamed.status == 200
    assert streamed.events[-2:] == [whole.json, "[DONE]"]
    assert later.status == 200


def test_errors_and_cuts_strike_their_share() -> None:
    async def serve() -> tuple[int, int, int]:
        server = EngineServer(some_options(allow_faults=True))
        await order(server, error_rate=0.5)
        failed = [await call(server, CHAT, a_chat(out_len=1)) for _ in range(100)]
        await order(server, drop_rate=0.5)
        whole = [await call(server, CHAT, a_chat(out_len=9)) for _ in range(100)]
        streams = [await call(server, CHAT, a_chat(out_len=9, stream=True)) for _ in range(100)]
        assert {len(answer.chunks) for answer in whole if answer.ended_at is None} == {0}
        assert {len(answer.chunks) for answer in streams if answer.ended_at is None} == {1}
        return (
            sum(answer.status == 500 for answer in failed),
            sum(answer.ended_at is None for answer in whole),
            sum(answer.ended_at is None for answer in streams),
        )

    counts = run_in_virtual_time(serve())

    assert all(35 < count < 65 for count in counts)


def test_orders_are_taken_only_if_allowed_and_sensible() -> None:
    async def serve() -> None:
        deaf = EngineServer(some_options())
        assert (await order(deaf, stall=True)).status == 404

        server = EngineServer(some_options(allow_faults=True))
        wrong = await order(server, stal=True)
        assert wrong.status == 400
        assert "no fault 'stal'" in wrong.json["error"]
        await order(server, slow=2)
        assert (await call(server, "/emulator/faults")).json["slow"] == 2

    run_in_virtual_time(serve())


# -- headers


def test_headers_say_the_speed_the_request_id_and_on_demand_the_load() -> None:
    async def serve() -> None:
        server = EngineServer(some_options(speed=20.0, request_id_headers=True))
        named = {"x-request-id": "r1", "endpoint-load-metrics-format": "JSON"}

        answer = await call(server, CHAT, a_chat(), headers=named)
        assert answer.headers[b"x-emulator-speed"] == b"20"
        assert answer.headers[b"x-request-id"] == b"r1"
        assert answer.json["id"] == "chatcmpl-r1"
        load = answer.headers[b"endpoint-load-metrics"]
        assert load.startswith(b"JSON ")
        assert set(orjson.loads(load[5:])["named_metrics"]) == {
            "num_requests_waiting",
            "kv_cache_usage_perc",
        }

        streamed = await call(server, CHAT, a_chat(stream=True))
        assert len(streamed.headers[b"x-request-id"]) == 16
        assert b"endpoint-load-metrics" not in streamed.headers

    run_in_virtual_time(serve())
