"""What is shown live: once, over time, every second."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message

from gateway.api.live import MAX_LISTENERS, EventStream, Frames
from tests.api.harness import Running, a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, once, plain
from tests.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(gw: Running) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Follow the gateway's events."""
    async with gw.session.get(gw.url + "/admin/events") as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")

        async def frames() -> AsyncIterator[dict[str, Any]]:
            async for line in response.content:
                assert b"secret" not in line
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

        yield frames()


async def test_a_budget_that_was_cut_is_shown_cut_to_people_and_to_machines() -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, policy={"name": "hexsage"}) as gw,
    ):
        (load,) = gw.gateway.scheduler.fleet.loads.values()
        load.budget.refused()
        budget_tokens = load.budget_tokens(gw.gateway.scheduler.placement.policy.budget_share or 0)
        shown: Any = (await gw.request("GET", "/admin/overview")).json
        metrics = (await gw.request("GET", "/metrics")).body.decode()

    assert shown["backends"][0]["kv_budget_tokens"] == round(budget_tokens)
    assert budget_tokens < 0.8 * load.kv_tokens
    (line,) = [line for line in metrics.splitlines() if "_kv_budget_tokens{" in line]
    assert float(line.split()[-1]) == pytest.approx(budget_tokens)


async def test_a_frame_shows_what_runs_waits_and_is_late() -> None:
    gate = asyncio.Event()

    async with (
        a_fake_backend(once(gate)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}], policy={"name": "hexsage"}) as gw,
    ):
        headers = {"x-workflow-id": "w", "x-workflow-deadline-ms": "1"}
        calls = [asyncio.ensure_future(gw.post(chat("secret"), headers=headers)) for _ in range(3)]
        await gw.until(lambda: gw.gateway.driver.in_flight == 3)
        reply = await gw.request("GET", "/admin/overview")
        shown: Any = reply.json

        assert (shown["in_flight"], shown["queued"]) == (1, 2)
        (backend,) = shown["backends"]
        assert (backend["in_flight"], backend["slots"]) == (1, 1)
        assert backend["kv_budget_tokens"] < backend["kv_tokens"]
        (queue,) = shown["queues"]
        assert (queue["model"], queue["tenant"], queue["waiting"]) == ("m1", "anonymous", 2)
        (run,) = shown["workflows"]["open"]
        assert (run["id"], run["is_late"], len(run["spans"])) == ("w", True, 3)
        assert len(shown["requests"]) == 3
        assert shown["missing"] is None
        assert b"secret" not in reply.body
        gate.set()
        await asyncio.gather(*calls)


async def test_what_has_ended_shows_in_the_trends() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat())
        told: Any = (await gw.request("GET", "/admin/trends")).json

        done = sum(point["completed_per_s"] for point in told["points"])
        assert done > 0
        assert any(point["call_ms"][0] is not None for point in told["points"])
        assert [policy["name"] for policy in told["policies"]] == ["round_robin+fcfs"]


async def test_events_come_every_second_and_follow_what_happens() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        async with listening(gw) as frames:
            first = await anext(frames)
            await gw.request("POST", "/admin/backends/e0/drain")
            second = await anext(frames)

            assert first["backends"][0]["state"] == "up"
            assert second["backends"][0]["state"] == "draining"
            assert 0 < second["now"] - first["now"] < 1.5
        await gw.request("POST", "/admin/backends/e0/undrain")


async def test_events_need_the_key_and_have_room_for_so_many() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, admin_key="open") as gw:
        key = {"authorization": "Bearer open"}
        assert (await gw.request("GET", "/admin/events")).status == 401
        streams = [
            await gw.session.get(gw.url + "/admin/events", headers=key)
            for _ in range(MAX_LISTENERS)
        ]
        refused = await gw.request("GET", "/admin/events", headers=key)

        assert {stream.status for stream in streams} == {200}
        assert (refused.status, refused.error["code"]) == (503, "too_many_connections")
        for stream in streams:
            stream.close()

        async def has_room() -> bool:
            async with gw.session.get(gw.url + "/admin/events", headers=key) as again:
                return again.status == 200

        async with asyncio.timeout(2):
            while not await has_room():  # noqa: ASYNC110 - nobody tells that listeners have left
                await asyncio.sleep(0.01)


async def test_events_end_when_the_gateway_stops() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        gw.canary = False
        async with listening(gw) as frames:
            await anext(frames)
            gw.gateway.withdraw()
            assert (await anext(frames))["missing"] == "shutting down"
            gw.gateway.begin_shutdown()
            async with asyncio.timeout(2):
                assert [frame async for frame in frames] == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_other_sites_pages_may_not_use_admin(site: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        path, headers = "/admin/backends/e0/drain", {"sec-fetch-site": site}
        refused = await gw.request("POST", path, headers=headers)

        assert (refused.status, refused.error["code"]) == (403, "admin_closed")
        own = await gw.request("GET", "/admin/state", headers={"sec-fetch-site": "same-origin"})
        assert own.status == 200


def test_a_frame_is_made_once_for_all_who_listen_and_not_at_all_for_nobody() -> None:
    async def scene() -> None:
        frames = Frames(dict, asyncio.get_running_loop().time)
        await asyncio.sleep(5)
        assert frames.made == 0

        frames.current()
        for _ in range(3):
            await asyncio.gather(*(frames.next() for _ in range(10)))
        assert frames.made == 4

    run_in_virtual_time(scene())


def test_a_listener_that_takes_nothing_is_dropped() -> None:
    async def scene() -> float:
        loop = asyncio.get_running_loop()
        frames = Frames(dict, loop.time)
        cut: list[float] = []

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        scope = {"type": "http", "state": {"abort": lambda: cut.append(loop.time())}}
        await EventStream(frames, lambda: False, patience_s=7.0)(scope, receive, send)
        assert frames.listeners == 0
        (at,) = cut
        return at

    assert run_in_virtual_time(scene()) == pytest.approx(7.0)
