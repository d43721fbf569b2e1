"""Operators and the fleet: drain, undrain, enable, add, remove, reload."""

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.config.sources import load_settings
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from tests.api.harness import Reply, Running, a_gateway, chat, overhearing, serving
from tests.backends.fake_backend import (
    MODEL,
    FakeBackend,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio
QUICK: dict[str, object] = {"interval_s": 0.1, "timeout_s": 0.5, "ramp_s": 0}


async def do(gw: Running, method: str, path: str, wish: object = None) -> Reply:
    """Ask something of /admin."""
    data = None if wish is None else json.dumps(wish).encode()
    return await gw.request(method, f"/admin{path}", data)


async def test_a_drained_backend_finishes_what_it_has_and_gets_nothing_new() -> None:
    async with (
        a_fake_backend(after(0.3)) as one,
        a_fake_backend(plain) as two,
        a_gateway(one, two) as gw,
    ):
        running = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: len(one.calls) == 1)

        told = await do(gw, "POST", "/backends/e0/drain")

        assert told.json["state"] == "draining"
        assert [(await gw.post(chat())).status for _ in range(4)] == [200] * 4
        assert (await running).status == 200
        assert (len(one.calls), len(two.calls)) == (1, 4)
        seen = len(one.probes)
        await gw.until(lambda: len(one.probes) > seen + 3)  # a whole look must not undo it
        assert gw.gateway.scheduler.fleet.loads[_id("e0")].state.value == "draining"

        assert (await do(gw, "POST", "/backends/e0/undrain")).json["state"] == "up"
        one.script = plain
        await asyncio.gather(*(gw.post(chat()) for _ in range(4)))
        assert len(one.calls) > 1


async def test_what_waits_for_a_drained_backend_goes_elsewhere() -> None:
    async with (
        a_fake_backend(after(0.5)) as one,
        a_fake_backend(plain) as two,
        a_gateway(one, two, backends=[{"max_in_flight": 1}, {}]) as gw,
    ):
        calls = [asyncio.ensure_future(gw.post(chat())) for _ in range(8)]
        await gw.until(lambda: len(two.calls) == 4)

        await do(gw, "POST", "/backends/e0/drain")
        assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 8

        assert (len(one.calls), len(two.calls)) == (1, 7)


async def test_an_operator_can_trust_a_backend_again() -> None:
    failing = answers(b"{}", "500 Internal Server Error")
    health = {**QUICK, "failures": 2, "cooldown_s": 60}
    async with (
        a_fake_backend(failing) as one,
        a_fake_backend(plain) as two,
        a_gateway(one, two, health=health) as gw,
    ):
        replies = [await gw.post(chat()) for _ in range(8)]

        assert [reply.status for reply in replies] == [200] * 8
        assert len(one.calls) == 2
        state = await do(gw, "GET", "/backends")
        assert isinstance(state.json["backends"], list)
        assert [backend["breaker"] for backend in state.json["backends"]] == ["open", "closed"]
        one.script = plain
        told = await do(gw, "POST", "/backends/e0/enable")
        assert told.json["breaker"] == "closed"
        for _ in range(4):
            await gw.post(chat())
        assert len(one.calls) > 2


async def test_a_backend_can_be_added_and_removed_while_streams_run() -> None:
    """Case 202."""
    slow = streams(*[frame("x")] * 5, frame("", "stop"), gap_s=0.1)
    async with (
        a_fake_backend(slow) as one,
        a_fake_backend(plain) as two,
        a_gateway(one) as gw,
    ):
        streaming = asyncio.ensure_future(gw.post(chat(stream=True)))
        await gw.until(lambda: len(one.calls) == 1)
        added = await do(gw, "POST", "/backends", {"name": "new", "url": two.url})
        assert (added.status, added.json) == (201, {"name": "new"})
        await gw.until(lambda: _id("new") in gw.gateway.scheduler.fleet.loads)

        removed = await do(gw, "DELETE", "/backends/e0")

        assert removed.status == 204
        assert (await gw.post(chat())).status == 200
        assert len(two.calls) == 1
        assert (await streaming).status == 200
        metrics = await gw.request("GET", "/metrics")
        assert b'"e0"' not in metrics.body
        assert b'backend="new"' in metrics.body


@pytest.mark.parametrize(
    ("wish", "status", "told"),
    [
        ({"name": "e0", "url": "http://127.0.0.1:1"}, 409, "already"),
        ({"name": "x"}, 400, "url: is missing"),
        ({"name": "x", "url": "file:///etc/passwd"}, 400, "must be http://"),
        ({"name": "x", "url": "http://169.254.169.254/"}, 400, "link-local"),
        ({"name": "x", "url": "http://h", "colour": "red"}, 400, "colour"),
        ({"name": "x", "url": "http://h", "api_key_env": "HOME"}, 400, "no configured backend"),
        ({"name": "x", "url": "https://h", "tls": {"ca_file": "/nope"}}, 400, "tls: "),
        ([], 400, "must be a JSON object"),
    ],
)
async def test_a_backend_that_is_none_is_refused(wish: object, status: int, told: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await do(gw, "POST", "/backends", wish)

        assert reply.status == status
        assert told in str(reply.error["message"])
        assert gw.gateway.operations.names() == {"e0"}


async def test_an_engine_that_is_there_already_is_refused_as_in_the_file() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        again = await do(gw, "POST", "/backends", {"name": "x", "url": f"{engine.url}/v1/"})
        other = {"name": "x", "url": engine.url, "model": "m2"}

        assert (again.status, again.error["code"]) == (400, "invalid_backend")
        assert again.error["message"] == (
            "url: 'x' and 'e0' are one engine: its memory would count twice"
        )
        assert gw.gateway.operations.names() == {"e0"}
        assert (await do(gw, "POST", "/backends", other)).status == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/backends/nope"),
        ("POST", "/backends/nope/drain"),
        ("POST", "/backends/nope/undrain"),
        ("POST", "/backends/nope/enable"),
    ],
)
async def test_who_is_not_there_cannot_be_told_anything(method: str, path: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await do(gw, method, path)).error["code"] == "backend_not_found"


async def test_all_of_it_lies_behind_the_admin_key() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, admin_key="open") as gw:
        for method, path in (
            ("POST", "/reload"),
            ("POST", "/backends"),
            ("DELETE", "/backends/e0"),
            ("POST", "/backends/e0/drain"),
        ):
            assert (await do(gw, method, path, {})).status == 401


# Reloads


class Files:
    """A gateway's configuration on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "backends.yaml"
        self.content: dict[str, Any] = {
            "policy": {"name": "round_robin+fcfs"},
            "health": QUICK,
            "watch_s": 0.05,
        }

    def write(self, **changes: object) -> None:
        self.content |= changes
        self.path.write_text(yaml.safe_dump(self.content))

    def load(self) -> Settings:
        return load_settings(self.path)


@asynccontextmanager
async def a_configured_gateway(files: Files, *engines: FakeBackend) -> Any:
    """Run a gateway on a file."""
    gateway = Gateway(
        files.load(),
        predictor=LengthPredictor(PredictorSettings(is_semantic=False)),
        load=files.load,
        config_path=files.path,
    )
    with overhearing() as ear:
        async with serving(gateway) as port, aiohttp.ClientSession() as session:
            running = Running(gateway, engines, session, port)
            yield running, ear
            await running.quiesce()


def entry(engine: FakeBackend, name: str = "e0", **more: object) -> dict[str, object]:
    """A backend in the file."""
    return {"name": name, "url": engine.url, **more}


async def test_a_changed_file_is_taken_up_by_itself(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with a_fake_backend(plain) as one, a_fake_backend(plain) as two:
        files.write(backends=[entry(one)])
        async with a_configured_gateway(files, one, two) as (gw, _):
            files.write(
                backends=[entry(one), entry(two, "e1")], models={"alias": {"target": MODEL}}
            )
            await gw.until(lambda: gw.gateway.operations.names() == {"e0", "e1"})
            await gw.until(lambda: _id("e1") in gw.gateway.scheduler.fleet.loads)

            await asyncio.gather(*(gw.post({**chat(), "model": "alias"}) for _ in range(4)))
            assert (len(one.calls), len(two.calls)) == (2, 2)


def _half(files: Files) -> None:
    files.path.write_text(files.path.read_text()[:20])


def _in_place_of(text: str) -> Callable[[Files], None]:
    def spoil(files: Files) -> None:
        files.path.write_text(text)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        _half,
        _in_place_of(""),
        _in_place_of("[]"),
        _in_place_of("backends: 7"),
        _in_place_of("backends: [{name: a, url: 'http://h'}, {name: a, url: 'http://h'}]"),
        _in_place_of("backends: [{name: a, url: 'ftp://h'}]"),
        _in_place_of("backends: [{name: a, url: 'https://h', tls: {ca_file: /nope}}]"),
        lambda files: files.path.unlink(),
    ],
)
async def test_a_bad_file_changes_nothing_and_says_what_is_wrong(
    tmp_path: Path, spoil: Callable[[Files], None]
) -> None:
    """Case 162."""
    files = Files(tmp_path)
    async with a_fake_backend(plain) as one, a_fake_backend(plain) as two:
        files.write(backends=[entry(one)], watch_s=0)
        async with a_configured_gateway(files, one, two) as (gw, ear):
            spoil(files)

            refused = await do(gw, "POST", "/reload")

            assert (refused.status, refused.error["code"]) == (400, "invalid_configuration")
            assert len(str(refused.error["message"])) > 10
            assert any("stays as it was" in error for error in ear.errors)
            assert (await gw.post(chat())).status == 200
            files.write(backends=[entry(two)])
            assert (await do(gw, "POST", "/reload")).status == 200
            assert (await gw.post(chat())).status == 200
            assert len(two.calls) == 1


async def test_a_file_replaced_by_a_link_is_taken_up(tmp_path: Path) -> None:
    """Case 162: as orchestrators mount their files."""
    files = Files(tmp_path)
    async with a_fake_backend(plain) as one, a_fake_backend(plain) as two:
        files.write(backends=[entry(one)])
        async with a_configured_gateway(files, one, two) as (gw, _):
            other = Files(tmp_path)
            other.path = tmp_path / "other.yaml"
            other.write(backends=[entry(two, "e1")])
            (tmp_path / "link").symlink_to(other.path)
            (tmp_path / "link").replace(files.path)

            await gw.until(lambda: gw.gateway.operations.names() == {"e1"})
            await gw.until(lambda: _id("e1") in gw.gateway.scheduler.fleet.loads)


async def test_no_call_sees_half_of_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 164: the same backend with another address and another key, over and over."""
    monkeypatch.setenv("KEY_1", "key-1")
    monkeypatch.setenv("KEY_2", "key-2")
    files = Files(tmp_path)
    async with a_fake_backend(after(0.02)) as one, a_fake_backend(after(0.02)) as two:
        ways = [[entry(one, api_key_env="KEY_1")], [entry(two, api_key_env="KEY_2")]]
        files.write(backends=ways[0], watch_s=0)
        async with a_configured_gateway(files, one, two) as (gw, _):
            statuses: list[int] = []

            async def call() -> None:
                statuses.append((await gw.post(chat())).status)

            async with asyncio.TaskGroup() as calls:
                for number in range(30):
                    for _ in range(5):
                        calls.create_task(call())
                    files.write(backends=ways[(number + 1) % 2])
                    assert (await do(gw, "POST", "/reload")).status == 200

            assert statuses == [200] * 150
            for engine, key in ((one, "key-1"), (two, "key-2")):
                assert engine.calls
                sent = {seen.headers["authorization"] for seen in engine.calls + engine.probes}
                assert sent == {f"Bearer {key}"}
            await gw.until(lambda: _probing() == 1)


async def test_a_stricter_queue_is_strict_with_what_waits(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with a_fake_backend(after(0.5)) as engine:
        files.write(backends=[entry(engine, max_in_flight=1)], watch_s=0)
        async with a_configured_gateway(files, engine) as (gw, _):
            calls = [asyncio.ensure_future(gw.post(chat())) for _ in range(4)]
            await gw.until(lambda: gw.gateway.scheduler.waiting == 3)

            files.write(queue={"max_requests": 1})
            await do(gw, "POST", "/reload")

            replies = await asyncio.gather(*calls)
            assert sorted(reply.status for reply in replies) == [200, 200, 503, 503]
            refused = [reply for reply in replies if reply.status == 503]
            assert {reply.error["code"] for reply in refused} == {"queue_full"}
            assert all("retry-after" in reply.headers for reply in refused)


async def test_what_only_a_restart_can_change_is_named(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with a_fake_backend(plain) as engine:
        files.write(backends=[entry(engine)], watch_s=0)
        async with a_configured_gateway(files, engine) as (gw, _):
            files.write(port=9, limits={"max_body_bytes": 10}, policy={"name": "hexgen"})

            for _ in range(2):
                told = await do(gw, "POST", "/reload")
                assert told.json == {"restart_needed_for": ["limits", "port"]}

            assert (await do(gw, "GET", "/policy")).json["name"] == "hexgen"
            assert (await gw.post(chat())).status == 200


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await do(gw, "POST", "/reload")).status == 400


def _probing() -> int:
    """How many tasks look at engines."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count("Probe.run")


def _id(name: str) -> Any:
    return name
