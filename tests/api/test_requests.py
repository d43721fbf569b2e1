"""Why a request went where it went, as operators are told."""

import asyncio
from typing import Any

import pytest

from tests.api.harness import Reply, Running, a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, after, once, plain, resets

pytestmark = pytest.mark.anyio

DEFAULT_POLICY = {"name": "hexsage"}


async def why(gw: Running, request_id: str) -> dict[str, Any]:
    reply = await gw.request("GET", f"/admin/requests/{request_id}")
    assert reply.status == 200, reply.body
    assert b"secret" not in reply.body
    return reply.json


async def listed(gw: Running, query: str = "") -> list[dict[str, Any]]:
    reply = await gw.request("GET", f"/admin/requests{query}")
    assert reply.status == 200, reply.body
    assert b"secret" not in reply.body
    found: Any = reply.json["requests"]
    return list(found)


async def test_an_answered_request_is_told_whole_by_its_clients_id() -> None:
    async with (
        a_fake_backend(plain) as first,
        a_fake_backend(plain) as second,
        a_gateway(first, second, policy=DEFAULT_POLICY) as gw,
    ):
        headers = {
            "x-request-id": "mine/1",
            "x-workflow-id": "w",
            "x-workflow-stage": "plan",
            "x-workflow-deadline-ms": "60000",
        }
        answered = await gw.post(chat("secret"), headers=headers)
        assert answered.headers["x-request-id"] == "mine/1"
        told = await why(gw, "mine/1")

        assert (told["outcome"], told["state"], told["attempts"][0]["number"]) == (
            "completed",
            "ended",
            1,
        )
        assert (told["workflow"], told["stage"]) == ("w", "plan")
        assert told["client_request_id"] == "mine/1"
        assert told["deadline"]["met"] is True
        assert told["deadline"]["in_ms"] == 60_000
        assert told["deadline"]["laxity_ms"] < told["deadline"]["budget_ms"]
        assert told["actual"]["output_tokens"] > 0
        assert told["predicted"]["output_tokens_p90"] >= told["predicted"]["output_tokens_p50"]
        chosen, other = told["attempts"][0]["candidates"]
        assert (chosen["verdict"], other["verdict"]) == ("chosen", "tie")
        assert chosen["backend"] == told["backend"] == "e0"
        assert await why(gw, told["request_id"]) | {"age_ms": 0} == told | {"age_ms": 0}


async def test_a_failed_attempt_and_an_absent_backend_have_their_reasons() -> None:
    async with (
        a_fake_backend(resets) as broken,
        a_fake_backend(plain) as sound,
        a_fake_backend(plain) as drained,
        a_gateway(broken, sound, drained) as gw,
    ):
        await gw.request("POST", "/admin/backends/e2/drain")
        reply = await gw.post(chat("secret"))
        told = await why(gw, reply.headers["x-request-id"])

        first, second = told["attempts"]
        assert (first["backend"], first["failure"]) == ("e0", "reset")
        assert (second["backend"], second["failure"]) == ("e1", None)
        verdicts = {one["backend"]: one["verdict"] for one in second["candidates"]}
        assert verdicts == {"e0": "tried", "e1": "chosen", "e2": "draining"}
        assert all(one["why"] for one in second["candidates"])


async def test_a_waiting_request_says_what_it_waits_for() -> None:
    gate = asyncio.Event()

    async with (
        a_fake_backend(once(gate)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}], policy=DEFAULT_POLICY) as gw,
    ):
        first = asyncio.ensure_future(gw.post(chat("secret")))
        await gw.until(lambda: gw.gateway.scheduler.running == 1)
        second = asyncio.ensure_future(gw.post(chat("secret"), headers={"x-request-id": "later"}))
        await gw.until(lambda: gw.gateway.scheduler.waiting == 1)
        told = await why(gw, "later")

        assert (told["state"], told["outcome"], told["attempts"]) == ("queued", None, [])
        (candidate,) = told["waiting"]["candidates"]
        assert (candidate["backend"], candidate["verdict"]) == ("e0", "full")
        assert [one["outcome"] for one in await listed(gw, "?outcome=open")] == [None, None]
        gate.set()
        await asyncio.gather(first, second)
        assert (await why(gw, "later"))["waiting"] is None


async def test_a_held_call_names_the_stages_it_waits_for() -> None:
    stages = [{"name": "plan"}, {"name": "act", "depends_on": ["plan"]}]
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        declared = await gw.post({"id": "w", "stages": stages}, path="/v1/workflows")
        assert declared.status == 201
        headers = {"x-workflow-id": "w", "x-request-id": "act-1", "x-workflow-stage": "act"}
        held = asyncio.ensure_future(gw.post(chat(), headers=headers))
        await gw.until(lambda: gw.gateway.scheduler.waiting == 1)
        told = await why(gw, "act-1")

        assert told["state"] == "held"
        assert told["waiting"]["for"] == "earlier stages of its workflow: plan"
        await gw.post(chat(), headers={"x-workflow-id": "w", "x-workflow-stage": "plan"})
        assert (await held).status == 200


async def test_a_refusal_is_told_with_when_to_come_back() -> None:
    async with (
        a_fake_backend(after(0.3)) as engine,
        a_gateway(
            engine,
            backends=[{"max_in_flight": 1}],
            queue={"max_requests": 1},
            policy=DEFAULT_POLICY,
        ) as gw,
    ):
        calls = [asyncio.ensure_future(gw.post(chat())) for _ in range(2)]
        await gw.until(lambda: gw.gateway.driver.in_flight == 2)
        refused = await gw.post(chat("secret"))
        told = await why(gw, refused.headers["x-request-id"])

        assert refused.status == 503
        assert (told["outcome"], told["reason"]) == ("rejected", "queue_full")
        assert told["retry_after_ms"] >= 0
        await asyncio.gather(*calls)


async def test_the_list_is_newest_first_and_can_be_narrowed() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for number in range(3):
            headers = {"x-workflow-id": f"w{number % 2}", "x-workflow-name": "t"}
            await gw.post(chat("secret"), headers=headers)
        await gw.post({**chat(), "model": "nope"})

        assert [one["workflow"] for one in await listed(gw)] == [None, "w0", "w1", "w0"]
        assert len(await listed(gw, "?limit=2")) == 2
        assert len(await listed(gw, "?workflow=w0")) == 2
        assert len(await listed(gw, "?workflow=t")) == 3
        assert len(await listed(gw, "?outcome=completed")) == 3
        (refused,) = await listed(gw, "?outcome=rejected")
        assert refused["reason"] == "model_not_found"
        assert len(await listed(gw, "?model=nope")) == 1
        assert (await gw.request("GET", "/admin/requests?limit=0")).status == 400


async def test_an_unknown_request_is_a_404_in_words() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply: Reply = await gw.request("GET", "/admin/requests/nobody")

        assert reply.status == 404
        assert reply.error["code"] == "not_found"
        assert "`nobody`" in str(reply.error["message"])
