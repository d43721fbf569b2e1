"""Several workers are one gateway: limits, books, what is known; and what a death leaves behind."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.api.desk import Arrival
from gateway.api.lesson import Outline
from gateway.clients import Clients
from gateway.config.backends import BackendEntry
from gateway.core.outcomes import FailureKind
from gateway.core.types import BackendId, BackendState, RequestId, TenantId
from gateway.keys_file import KeyEntry, hash_of, write_keys
from gateway.workers import wire
from gateway.workers.link import Link
from gateway.workers.wire import Down, Fields, Origin
from gateway.workers.worker import Worker
from tests.api.harness import Reply, chat, serving_app, settings_for
from tests.backends.fake_backend import (
    MODEL,
    Exchange,
    Script,
    a_fake_backend,
    answers,
    frame,
    once,
    plain,
    streams,
)
from tests.workers.harness import HTTP, HUB, Asked, Crowd, a_crowd, a_scheduler

pytestmark = pytest.mark.anyio

KEY = "hsk-one"
AUTH = {"authorization": f"Bearer {KEY}"}
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "output": []}


def with_keys(path: Path, **limits: int) -> dict[str, Any]:
    """Settings of a gateway where one key has limits."""
    write_keys(path, [KeyEntry.model_validate({"name": "one", "sha256": hash_of(KEY), **limits})])
    return {"keys_file": path, "admin_key": "admin"}


def without_canaries(crowd: Crowd) -> None:
    """Who has no key is no canary."""
    for running in crowd.runnings:
        running.canary = False


@pytest.mark.parametrize(("workers", "limit"), [(4, 10), (3, 7)])
async def test_requests_a_minute_are_exact_over_all_workers(
    tmp_path: Path, workers: int, limit: int
) -> None:
    keys = with_keys(tmp_path / "keys.yaml", rpm=limit)
    async with a_fake_backend(plain) as engine, a_crowd(engine, workers=workers, **keys) as crowd:
        without_canaries(crowd)
        calls = (
            crowd[number % workers].post(chat(str(number)), headers=AUTH) for number in range(40)
        )
        replies = await asyncio.gather(*calls)

        statuses = [reply.status for reply in replies]
        assert (statuses.count(200), statuses.count(429)) == (limit, 40 - limit)
        refused = next(reply for reply in replies if reply.status == 429)
        assert refused.error["code"] == "request_rate_limit"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"


async def test_calls_at_once_are_exact_over_all_workers(tmp_path: Path) -> None:
    go = asyncio.Event()
    keys = with_keys(tmp_path / "keys.yaml", concurrency=3)
    async with a_fake_backend(once(go)) as engine, a_crowd(engine, **keys) as crowd:
        without_canaries(crowd)
        calls = [
            asyncio.ensure_future(crowd[number % 2].post(chat(), headers=AUTH))
            for number in range(10)
        ]
        await crowd[0].until(lambda: sum(call.done() for call in calls) == 7)
        go.set()
        replies = await asyncio.gather(*calls)

        assert sorted(reply.status for reply in replies) == [200] * 3 + [429] * 7
        assert (await crowd[1].post(chat(), headers=AUTH)).status == 200


async def test_a_revoked_key_is_worth_nothing_even_where_the_news_has_not_come(
    tmp_path: Path,
) -> None:
    keys = with_keys(tmp_path / "keys.yaml")
    async with a_fake_backend(plain) as engine, a_crowd(engine, **keys) as crowd:
        without_canaries(crowd)
        assert (await crowd[1].post(chat(), headers=AUTH)).status == 200
        assert crowd.gateway.keys is not None

        crowd.gateway.keys.replace([], 0.0)

        reply = await crowd[1].post(chat(), headers=AUTH)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")


async def test_a_key_is_the_same_key_where_the_scheduler_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    write_keys(file, [KeyEntry(name="k", sha256=hash_of("schlüssel"))])
    headers = {"authorization": "Bearer schlüssel"}
    async with a_fake_backend(plain) as engine, a_crowd(engine, keys_file=file) as crowd:
        without_canaries(crowd)

        assert (await crowd[0].post(chat(), headers=headers)).status == 200
        assert (await crowd[0].request("GET", "/v1/workflows", headers=headers)).status == 200


async def test_whichever_worker_is_asked_says_the_same() -> None:
    async with a_fake_backend(plain) as engine, a_crowd(engine) as crowd:
        for number in range(6):
            assert (await crowd[number % 2].post(chat())).status == 200
        for path in ("/v1/models", "/admin/backends", "/openapi.json"):
            one, two = [await running.request("GET", path) for running in crowd.runnings]
            assert one.status == 200
            assert one.body == two.body, path
            names = [name.lower() for name, _ in one.raw_headers]
            assert sorted(set(names)) == sorted(names)

        for running in crowd.runnings:
            metrics = await running.request("GET", "/metrics")
            assert b'outcome="completed",reason=""} 6.0' in metrics.body
        assert (await crowd[0].request("GET", "/nothing?a=%2F")).status == 404


async def test_what_streams_from_the_scheduler_streams_through_a_worker_until_it_is_left() -> None:
    async with a_fake_backend(plain) as engine, a_crowd(engine) as crowd:
        async with crowd[1].session.get(f"{crowd[1].url}/admin/events") as response:
            assert (await response.content.readline()).startswith(b"data: {")
            assert _watchers() == 2
        await crowd[1].until(lambda: _watchers() == 0)


def _watchers() -> int:
    """How many requests are under way: at the worker, and at the scheduler process."""
    # Compiled, a coroutine has a type of its own instead of a name.
    watches = [task.get_coro() for task in asyncio.all_tasks()]
    names = (getattr(one, "__qualname__", type(one).__name__) for one in watches)
    return sum("_watch" in name and "client_present" in name for name in names)


async def test_a_backend_that_is_added_is_known_to_all_before_its_first_call() -> None:
    async with (
        a_fake_backend(plain) as one,
        a_fake_backend(plain) as two,
        a_crowd(one) as crowd,
    ):
        two.models = ["other"]
        wish = json.dumps({"name": "new", "url": two.url, "gpu": "A100-80G"}).encode()
        added = await crowd[0].request("POST", "/admin/backends", wish)
        assert added.status == 201, added.body
        loads = crowd.gateway.scheduler.fleet.loads
        await crowd[0].until(lambda: BackendId("new") in loads)

        # The turn must not come before the news of where it leads.
        reply = await crowd[1].post({**chat(), "model": "other"})
        assert (reply.status, len(two.calls)) == (200, 1)

        removed = await crowd[0].request("DELETE", "/admin/backends/new", b"{}")
        assert removed.status in (200, 204)
        assert (await crowd[1].post({**chat(), "model": "other"})).status == 404


async def test_a_worker_that_cannot_read_a_backends_tls_files_says_so_and_goes_on_as_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fake_backend(plain) as engine, a_crowd(engine, workers=1) as crowd:
        (end,) = crowd.scheduler.hub.workers
        fleet = crowd.scheduler.hub.told
        (e0,) = fleet["backends"]
        missing = {**e0, "url": "https://127.0.0.1:1", "tls": {"ca_file": "missing.pem"}}
        end.say([Down.FLEET, {**fleet, "backends": [missing], "aliases": {"alias": MODEL}}])

        await crowd[0].until(lambda: "backend e0: tls: " in caplog.text)

        assert (await crowd[0].post({**chat(), "model": "alias"})).status == 200
        assert crowd.scheduler.hub.workers == {end}
        (said,) = [line for line in caplog.messages if line.startswith("backend e0: tls: ")]
        assert said.endswith("this worker goes on with what it knew of it before, if anything")


async def test_calls_for_a_backend_that_a_worker_cannot_reach_for_its_tls_files_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with (
        a_fake_backend(plain) as one,
        a_fake_backend(plain) as two,
        a_crowd(one, policy={"name": "round_robin+fcfs"}) as crowd,
    ):
        crowd[0].canary = False
        broken = crowd.workers[0]
        put = Clients.put

        def unreadable(clients: Clients, entry: BackendEntry, *rest: Any) -> None:
            if clients is broken.clients and entry.name == "new":
                raise FileNotFoundError(2, "No such file or directory", "missing.pem")
            put(clients, entry, *rest)

        monkeypatch.setattr(Clients, "put", unreadable)
        wish = json.dumps({"name": "new", "url": two.url, "gpu": "A100-80G"}).encode()
        assert (await crowd[0].request("POST", "/admin/backends", wish)).status == 201
        loads = crowd.gateway.scheduler.fleet.loads
        new = BackendId("new")
        await crowd[0].until(lambda: new in loads and loads[new].state is BackendState.UP)

        replies = [await crowd[0].post(chat()) for _ in range(4)]

        assert [reply.status for reply in replies] == [200] * 4
        assert (len(one.calls), len(two.calls)) == (4, 0)
        assert crowd.gateway.counters.failures[FailureKind.CONNECT] > 0
        assert any("this worker has no way to new" in line for line in caplog.messages)
        assert {(await crowd[1].post(chat())).status for _ in range(4)} == {200}
        assert two.calls


async def test_a_call_that_was_refused_by_one_worker_keeps_its_place_at_another() -> None:
    full = answers(b'{"error": {"message": "full", "code": 503}}', "503 Full")
    async with a_fake_backend(full) as engine, a_crowd(engine) as crowd:
        first = await crowd[0].post(chat(), headers={"x-stainless-retry-count": "0"})
        engine.script = plain
        again = await crowd[1].post(chat(), headers={"x-stainless-retry-count": "1"})

        assert (first.status, again.status) == (503, 200)
        recent = (await crowd[0].request("GET", "/admin/state")).json["recent"]
        assert isinstance(recent, list)
        one, two = [line for line in recent if line["type"] == "Arrived"]
        assert two["first_seen_at"] == pytest.approx(one["at"], abs=0.05)


async def test_what_one_worker_had_made_another_one_finds() -> None:
    def keeps(name: str) -> Script:
        return answers(json.dumps({**RESPONSE, "id": f"resp_{name}"}).encode())

    async with (
        a_fake_backend(keeps("a")) as first,
        a_fake_backend(keeps("b")) as second,
        a_crowd(first, second) as crowd,
    ):
        asked = {"model": MODEL, "input": "hi"}
        made = {str((await crowd[0].post(asked, "/v1/responses")).json["id"]) for _ in range(4)}
        assert made == {"resp_a", "resp_b"}
        first.calls.clear()
        second.calls.clear()

        assert (await crowd[1].request("GET", "/v1/responses/resp_a")).status == 200
        go_on = {**asked, "previous_response_id": "resp_a"}
        assert (await crowd[1].post(go_on, "/v1/responses")).status == 200
        assert (len(first.calls), len(second.calls)) == (2, 0)
        assert (await crowd[1].request("GET", "/v1/responses/resp_c")).status == 404


# Deaths


async def test_what_a_dead_worker_leaves_behind_is_abandoned(tmp_path: Path) -> None:
    """The oracle of `a_crowd` looks at slots and backlog, too."""
    keys = with_keys(tmp_path / "keys.yaml", concurrency=3)
    go = asyncio.Event()
    async with (
        a_fake_backend(once(go)) as engine,
        a_crowd(engine, backends=[{"max_in_flight": 2}], **keys) as crowd,
    ):
        without_canaries(crowd)
        alive = asyncio.ensure_future(crowd[0].post(chat(), headers=AUTH))
        await crowd[0].until(lambda: crowd.gateway.scheduler.running == 1)
        doomed, heard = await _a_worker(crowd)
        for number in range(2):
            doomed.say(wire.arrived(_an_arrival(number), Origin(hash_of(KEY), "/v1/completions")))
        await crowd[0].until(lambda: any(fields[0] == Down.START for fields in heard))
        assert crowd.gateway.driver.in_flight == 3
        doomed.say([wire.Up.FIRST_TOKEN, "doomed-0"])
        assert (await crowd[0].post(chat(), headers=AUTH)).error["code"] == "concurrency_limit"

        doomed.close()

        await crowd[0].until(lambda: crowd.gateway.driver.in_flight == 1)
        assert crowd[0].settled() == {("abandoned", ""): 2}
        go.set()
        assert (await alive).status == 200
        three = [crowd[1].post(chat(), headers=AUTH) for _ in range(3)]
        assert [reply.status for reply in await asyncio.gather(*three)] == [200] * 3


def _an_arrival(number: int) -> Arrival:
    return Arrival(
        id=RequestId(f"doomed-{number}"),
        request_id="r",
        tenant=TenantId("one"),
        outline=Outline(model=MODEL),
        able=frozenset({BackendId("e0")}),
        began_at=0.0,
    )


async def _a_worker(crowd: Crowd) -> tuple[Link, list[Fields]]:
    """Connect as a worker does."""
    heard: list[Fields] = []
    link = Link(heard.append, lambda: None, lambda: None)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: link.protocol, str(crowd.directory / HUB))
    await crowd[0].until(lambda: bool(heard))
    return link, heard


async def test_without_its_scheduler_a_worker_turns_calls_away_and_then_takes_them_again(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    rest = asyncio.Event()

    async def two_frames(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(frame("a"))
        await rest.wait()
        await exchange.chunk(frame("b", "stop") + b"data: [DONE]\n\n")
        await exchange.end_stream()

    async with AsyncExitStack() as stack:
        streaming = await stack.enter_async_context(a_fake_backend(two_frames))
        waited = await stack.enter_async_context(a_fake_backend(once(go)))
        settings = settings_for(streaming, waited, backends=[{}, {"max_in_flight": 1}])
        scheduler = AsyncExitStack()
        first = await scheduler.enter_async_context(a_scheduler(settings, tmp_path))
        worker = Worker(settings, tmp_path / HUB, tmp_path / HTTP)
        port = await stack.enter_async_context(serving_app(worker.app))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        gw = Asked(first.gateway, (streaming, waited), session, port, worker=worker)

        stream = await gw.dial(chat(stream=True))
        await stream.read_until(frame("a"))
        runs = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: len(waited.calls) == 1)
        first.gateway.engines.drain(BackendId("e0"), drains=True)
        waits = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: first.gateway.scheduler.waiting == 1)

        watching = await session.get(f"{gw.url}/admin/events")
        assert (await watching.content.readline()).startswith(b"data: {")

        await scheduler.aclose()

        with pytest.raises(aiohttp.ClientError):
            await watching.read()
        _is_told_to_come_back(await waits)
        _is_told_to_come_back(await gw.post(chat()))
        _is_told_to_come_back(await gw.request("GET", "/metrics"))
        _is_told_to_come_back(await gw.request("GET", "/v1/responses/resp_1"))
        assert (await gw.request("GET", "/healthz")).status == 200
        go.set()
        assert (await runs).status == 200
        rest.set()
        assert (await stream.read_until(b"0\r\n\r\n")).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")

        second = await stack.enter_async_context(a_scheduler(settings, tmp_path))
        gw.gateway = second.gateway
        await gw.until(lambda: worker.desk.is_connected)
        assert (await gw.post(chat(stream=True))).status == 200
        await gw.quiesce()
        stream.close()


def _is_told_to_come_back(reply: Reply) -> None:
    assert reply.status == 503
    assert reply.error["code"] == "scheduler_restarting"
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["x-should-retry"] == "true"


async def test_a_call_that_fails_when_there_is_no_scheduler_any_more_ends() -> None:
    async def breaks(exchange: Exchange) -> None:
        await go.wait()
        exchange.reset()

    go = asyncio.Event()
    async with a_fake_backend(breaks) as engine, a_crowd(engine) as crowd:
        call = asyncio.ensure_future(crowd[0].post(chat()))
        await crowd[0].until(lambda: len(engine.calls) == 1)
        crowd.scheduler.hub.close()
        await crowd[0].until(lambda: not crowd.workers[0].desk.is_connected)

        go.set()

        assert (await call).status == 502
        await crowd.scheduler.hub.listen(crowd.directory / HUB)
        for worker in crowd.workers:
            await crowd[0].until(lambda worker=worker: worker.desk.is_connected)  # type: ignore[misc]


async def test_streams_of_other_workers_go_on_when_one_leaves() -> None:
    pieces = [frame(str(number)) for number in range(20)]
    script = streams(*pieces, frame("", "stop"), b"data: [DONE]\n\n", gap_s=0.01)
    async with a_fake_backend(script) as engine, a_crowd(engine) as crowd:
        calls = [asyncio.ensure_future(crowd[0].post(chat(stream=True))) for _ in range(5)]
        await crowd[0].until(lambda: crowd.gateway.scheduler.running == 5)
        doomed, _ = await _a_worker(crowd)
        doomed.say(wire.arrived(_an_arrival(0), Origin("", "/v1/completions")))
        await crowd[0].until(lambda: crowd.gateway.scheduler.running == 6)

        doomed.close()

        for reply in await asyncio.gather(*calls):
            assert reply.events[-1] == b"[DONE]"
