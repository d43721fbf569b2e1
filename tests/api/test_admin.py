"""What operators see and change, and who may."""

import asyncio
import json

import aiohttp
import pytest

from tests.api.harness import Running, a_gateway, built, chat, serving
from tests.backends.fake_backend import a_fake_backend, after, frame, plain, streams

pytestmark = pytest.mark.anyio


async def test_the_state_says_what_runs_waits_and_was_decided() -> None:
    async with (
        a_fake_backend(after(0.3)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}]) as gw,
    ):
        calls = [asyncio.ensure_future(gw.post(chat("secret"))) for _ in range(3)]
        await gw.until(lambda: gw.gateway.driver.in_flight == 3)
        reply = await gw.request("GET", "/admin/state?decisions=2")
        state = reply.json

        assert (state["in_flight"], state["queued"]) == (1, 2)
        assert isinstance(state["recent"], list)
        assert len(state["recent"]) == 2
        assert isinstance(state["backends"], list)
        (backend,) = state["backends"]
        assert (backend["name"], backend["state"], backend["in_flight"]) == ("e0", "up", 1)
        # What the engine says of itself: its KV cache holds a million blocks of 16 tokens.
        assert (backend["kv_tokens"], backend["engine_running"]) == (16_000_000, 1)
        assert b"secret" not in reply.body
        await asyncio.gather(*calls)


async def test_the_policy_can_be_changed_while_calls_wait() -> None:
    async with (
        a_fake_backend(after(0.2)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}]) as gw,
    ):
        calls = [asyncio.ensure_future(gw.post(chat())) for _ in range(3)]
        await gw.until(lambda: gw.gateway.driver.in_flight == 3)
        wish = json.dumps({"name": "hexgen", "alpha": 0.25}).encode()
        changed = await gw.request("PUT", "/admin/policy", data=wish)

        assert (changed.status, changed.json["name"], changed.json["alpha"]) == (
            200,
            "hexgen",
            0.25,
        )
        assert (await gw.request("GET", "/admin/policy")).json == changed.json
        assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 3


@pytest.mark.parametrize("wish", [{"name": "nope"}, {"alpha": 2}, {"speed": 1}, {"alpha": "x"}])
async def test_a_policy_that_is_none_is_refused(wish: object) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request("PUT", "/admin/policy", data=json.dumps(wish).encode())

        assert reply.status == 400
        assert (await gw.request("GET", "/admin/policy")).json["name"] == "round_robin+fcfs"


async def test_a_body_that_is_not_said_to_be_json_is_told_of_its_header() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request("PUT", "/admin/policy", data=b'{"name": "hexgen"}', headers=form)

        assert reply.status == 400
        assert b"with the header content-type: application/json" in reply.body


async def test_with_an_admin_key_nobody_gets_in_without_it() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, admin_key="open") as gw:
        paths = ("/admin/state", "/admin/backends", "/admin/policy")
        for key, status in (("", 401), ("Bearer wrong", 401), ("Bearer open", 200)):
            for path in paths:
                reply = await gw.request("GET", path, headers={"authorization": key})
                assert reply.status == status
                assert b"open" not in reply.body or status == 200


async def test_beyond_loopback_admin_is_closed_without_a_key() -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, host="0.0.0.0", allow_anonymous=True) as gw,
    ):
        assert (await gw.request("GET", "/admin/state")).error["code"] == "admin_closed"


async def test_it_lives_and_is_ready() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.request("GET", "/healthz")).status == 200
        assert (await gw.request("GET", "/readyz")).status == 200
        docs = await gw.request("GET", "/openapi.json")
        assert docs.status == 200


async def test_a_stopping_gateway_takes_nothing_new_and_finishes_what_it_has() -> None:
    async with a_fake_backend(after(0.3)) as engine, a_gateway(engine) as gw:
        running = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: len(engine.calls) == 1)
        gw.gateway.begin_shutdown()
        refused = await gw.post(chat())
        ready = await gw.request("GET", "/readyz")

        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert "retry-after" in refused.headers
        assert ready.status == 503
        assert (await running).status == 200
        gw.canary = False


@pytest.mark.parametrize("stream", [False, True])
async def test_what_does_not_end_in_time_is_told_why(stream: bool) -> None:
    """Case 201."""
    endless = streams(*[frame("tok")] * 600, gap_s=0.1)
    async with a_fake_backend(endless if stream else after(60)) as engine:
        gateway = built(engine)
        async with serving(gateway) as port:
            async with aiohttp.ClientSession() as session:
                wire = await Running(gateway, (engine,), session, port).dial(chat(stream=stream))
            while not engine.calls:  # noqa: ASYNC110 - the fake tells nobody
                await asyncio.sleep(0.01)
            if stream:
                await wire.read_until(b"tok")
            gateway.begin_shutdown()
        said = await wire.read_all()
        wire.close()

        assert b"shutting_down" in said
        assert (b" 503 " in said) is not stream
        assert b"[DONE]" not in said
        assert gateway.driver.in_flight == 0
        assert engine.calls[0].gone_at is not None


async def test_the_predictor_tells_how_it_fares() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat("secret"))
        reply = await gw.request("GET", "/admin/predictor")

    assert reply.json["answered"] == 1
    assert isinstance(reply.json["by_level"], dict)
    assert isinstance(reply.json["calibration"], dict)
    assert b"secret" not in reply.body
