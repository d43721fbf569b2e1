"""Models, adapters and sessions: who may be asked, while backends come, go and fall silent."""

import asyncio
import json

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    a_fake_backend,
    answers,
    frame,
    plain,
    resets,
    streams,
)

pytestmark = pytest.mark.anyio
FULL = answers(b'{"error": {"message": "full", "code": 503}}', "503 Full")


async def test_adapters_come_and_go() -> None:
    """Case 144."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:

        async def listed() -> set[object]:
            data = (await gw.request("GET", "/v1/models")).json["data"]
            assert isinstance(data, list)
            return {card["id"] for card in data}

        assert (await gw.post({**chat(), "model": "ad1"})).status == 404
        engine.models = ["m1", "ad1", "org/ad2"]
        await gw.until(lambda: "ad1" in gw.gateway.scheduler.fleet.models())
        assert await listed() == {"m1", "ad1", "org/ad2"}
        assert (await gw.post({**chat(), "model": "org/ad2"})).status == 200
        engine.models = ["m1", "org/ad2"]
        await gw.until(lambda: "ad1" not in gw.gateway.scheduler.fleet.models())
        assert (await gw.post({**chat(), "model": "ad1"})).status == 404
        assert (await gw.post(chat())).status == 200


async def test_an_alias_of_nothing_is_a_model_that_does_not_exist() -> None:
    """Case 146; aliases of aliases are refused at start (tests/config/test_contradictions.py)."""
    models = {"dangling": {"target": "zzz"}, "m1": {"target": "m1"}}
    async with a_fake_backend(plain) as engine, a_gateway(engine, models=models) as gw:
        assert (await gw.post({**chat(), "model": "dangling"})).status == 404
        assert (await gw.post(chat())).status == 200


async def test_models_that_alternate_each_see_all_their_backends() -> None:
    """Case 148."""
    async with (
        a_fake_backend(plain) as a,
        a_fake_backend(plain) as b,
        a_fake_backend(plain) as c,
        a_fake_backend(plain) as d,
        a_gateway(a, b, c, d, backends=[{"model": m} for m in ("m1", "m1", "m2", "m2")]) as gw,
    ):
        for _ in range(12):
            await gw.post(chat())
            await gw.post({**chat(), "model": "m2"})

        assert [len(engine.calls) for engine in (a, b, c, d)] == [6, 6, 6, 6]


async def test_a_call_that_moves_on_keeps_to_those_that_have_its_adapter() -> None:
    """Case 173."""
    async with (
        a_fake_backend(FULL) as first,
        a_fake_backend(plain) as second,
        a_fake_backend(plain) as without,
    ):
        first.models = second.models = ["m1", "ad1"]
        async with a_gateway(first, second, without) as gw:
            for _ in range(4):
                assert (await gw.post({**chat(), "model": "ad1"})).status == 200

            assert without.calls == []
            assert len(second.calls) == 4


async def test_a_session_is_not_bound_to_the_dead() -> None:
    """Case 172: what died or never answered holds nobody."""
    flows = streams(frame("a"), frame("", "stop"), DONE)
    async with (
        a_fake_backend(flows) as first,
        a_fake_backend(flows) as second,
        a_gateway(first, second, policy={"name": "hexsage"}) as gw,
    ):

        async def step(number: int) -> int:
            body = chat(f"{number}" * 3000, stream=True)
            return (await gw.post(body, headers={"x-session-id": "s"})).status

        assert await step(1) == 200
        home, other = (first, second) if first.calls else (second, first)
        home.script = resets
        assert await step(2) == 200
        await home.stop()
        assert [await step(3), await step(4)] == [200, 200]
        assert len(other.calls) >= 3
        await home.start()
        home.script = flows
        await gw.until(lambda: gw.gateway.missing() is None)


async def test_before_an_engine_is_there_clients_are_told_to_wait() -> None:
    """Cases 75 and 165: a fleet that is not up yet is no reason to fail otherwise."""
    async with a_fake_backend(plain) as engine:
        await engine.stop()
        async with a_gateway(engine, backends=[{"model": "m1"}]) as gw:
            reply = await gw.post(chat())
            assert (reply.status, reply.error["code"]) == (503, "no_healthy_backend")
            assert reply.headers["x-should-retry"] == "true"
            assert (await gw.request("GET", "/healthz")).status == 200
            assert (await gw.request("GET", "/readyz")).status == 503

            await engine.start()
            gw.files += 1
            await gw.until(lambda: gw.gateway.missing() is None)
            assert (await gw.post(chat())).status == 200


async def test_an_engine_too_busy_to_tell_its_health_keeps_its_streams() -> None:
    """Cases 157 and 202."""
    script = streams(*[frame("t")] * 12, frame("", "stop"), DONE, gap_s=0.1)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        stream = asyncio.ensure_future(gw.post(chat(stream=True)))
        await gw.until(lambda: len(engine.calls) == 1)
        engine.slow_s["/health"] = 0.8
        reply = await stream

        assert reply.body.endswith(DONE)
        engine.slow_s.clear()
        await gw.until(lambda: gw.gateway.missing() is None, within_s=4)


async def test_a_removed_backend_leaves_no_series_and_is_forgotten() -> None:
    """Cases 160 and 168."""
    async with (
        a_fake_backend(plain) as first,
        a_fake_backend(plain) as second,
        a_gateway(first, second) as gw,
    ):
        await gw.post(chat())
        await gw.post(chat())
        assert b'backend="e1"' in (await gw.request("GET", "/metrics")).body
        reply = await gw.request("DELETE", "/admin/backends/e1")
        assert reply.status == 204
        before = len(second.calls)
        for _ in range(4):
            assert (await gw.post(chat())).status == 200

        assert len(second.calls) == before
        page = (await gw.request("GET", "/metrics")).body
        gauges = [line for line in page.splitlines() if line.startswith(b"hexsage_backend")]
        assert gauges
        assert not any(b'"e1"' in line for line in gauges)


async def test_fields_that_name_other_hosts_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 193, and proxies of the environment."""
    async with (
        a_fake_backend(plain) as evil,
        a_fake_backend(plain) as engine,
    ):
        monkeypatch.setenv("HTTP_PROXY", evil.url)
        monkeypatch.setenv("http_proxy", evil.url)
        async with a_gateway(engine) as gw:
            body = chat(
                api_base=evil.url,
                base_url=evil.url,
                extra_body={"api_base": evil.url},
                extra_headers={"Host": "evil", "Authorization": "x"},
                metadata={"backend_url": evil.url},
                litellm_params={"api_base": evil.url},
                proxies={"http": evil.url},
            )
            body["messages"] = [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": evil.url}}]}
            ]
            assert (await gw.post(body, headers={"Host": "evil"})).status == 200
            assert engine.calls[0].json == body

        assert evil.calls == evil.probes == []


async def test_an_absolute_target_is_no_other_host() -> None:
    """Case 194."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        body = json.dumps(chat()).encode()
        writer.write(
            b"POST http://evil/v1/chat/completions HTTP/1.1\r\nhost: evil\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()

        assert answer.startswith(b"HTTP/1.1 200")
        assert engine.calls[0].headers["host"] == engine.url.removeprefix("http://")
