"""Many at once, for long, oddly timed: nothing is lost, nothing grows, nobody waits for others."""

import asyncio
import gc
import time
from collections import Counter
from random import Random

import pytest

from gateway.api.disconnect import client_present
from gateway.api.door import Exchange as DoorExchange
from gateway.api.lesson import Lesson
from gateway.backends.answers import StreamAnswer
from gateway.backends.base import Call as EngineCall
from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    Exchange,
    FakeBackend,
    Script,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    resets,
    streams,
)

pytestmark = pytest.mark.anyio
ENDLESS = streams(*[frame("t")] * 400, gap_s=0.05)
PER_REQUEST = (DoorExchange, Lesson, StreamAnswer, EngineCall, client_present)


def alive() -> Counter[str]:
    """Count what should live no longer than its request."""
    gc.collect()
    return Counter(type(it).__name__ for it in gc.get_objects() if isinstance(it, PER_REQUEST))


async def test_nothing_of_a_request_outlives_it() -> None:
    """Cases 51 and 183: whatever its end, and however large its prompt."""
    ends: list[Script] = [
        plain,
        answers(b"{}", "500 No"),
        streams(frame("a"), ends="reset"),
        resets,
    ]
    before = alive()
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for number in range(60):
            engine.script = ends[number % len(ends)]
            await gw.post(chat("p" * 100_000, stream=number % 2 == 0))
        engine.script = ENDLESS
        for _ in range(10):
            wire = await gw.dial(chat(stream=True))
            await wire.read_until(b"\n\n")
            wire.reset()
        await gw.until(lambda: gw.gateway.driver.in_flight == 0)
        await gw.until(lambda: not alive() - before, within_s=5)


async def test_no_wake_up_is_lost() -> None:
    """Case 56: while anything waits, the only place is taken."""
    random = Random(3)
    async with (
        a_fake_backend(after(0.003)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}]) as gw,
    ):
        idle_polls = 0

        async def client() -> None:
            for _ in range(12):
                if random.random() < 0.2:
                    wire = await gw.dial(chat())
                    await asyncio.sleep(random.uniform(0, 0.01))
                    wire.reset()
                else:
                    assert (await gw.post(chat())).status == 200

        async def watch() -> None:
            nonlocal idle_polls
            scheduler = gw.gateway.scheduler
            while True:
                idle_polls += bool(scheduler.waiting and not scheduler.running)
                await asyncio.sleep(0.001)

        watcher = asyncio.ensure_future(watch())
        await asyncio.gather(*[client() for _ in range(16)])
        watcher.cancel()

        assert idle_polls == 0
        assert engine.peak == 1


async def test_callers_who_begin_something_together_do_not_depend_on_the_first() -> None:
    """Case 58."""
    async with a_fake_backend(after(0.1)) as engine, a_gateway(engine) as gw:
        headers = {"x-workflow-id": "never seen", "x-workflow-name": "new", "x-session-id": "s"}
        first = await gw.dial(chat())
        calls = [asyncio.ensure_future(gw.post(chat(), headers=headers)) for _ in range(30)]
        first.reset()

        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


@pytest.mark.parametrize("stream", [True])
async def test_more_at_once_than_http_libraries_allow_by_default(stream: bool) -> None:
    """Cases 90 and 95: 250 streams on one backend, and its health is told meanwhile."""
    script = streams(*[frame("t")] * 4, frame("", "stop"), DONE, gap_s=0.3)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        calls = [asyncio.ensure_future(gw.post(chat(stream=stream))) for _ in range(250)]
        # The client library of this test has a limit of its own, 100.
        await gw.until(lambda: engine.peak >= 100, within_s=10)
        wires = [await gw.dial(chat(stream=True)) for _ in range(100)]
        await gw.until(lambda: engine.peak >= 150, within_s=10)
        assert (await gw.request("GET", "/healthz")).status == 200
        for wire in wires:
            assert b"[DONE]" in await wire.read_until(b"0\r\n\r\n")

        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


async def test_one_dead_model_does_not_hold_up_another() -> None:
    """Case 65."""
    async with (
        a_fake_backend(after(60)) as dead,
        a_fake_backend(plain) as fine,
        a_gateway(
            dead,
            fine,
            backends=[{"model": "m1", "max_in_flight": 2}, {"model": "m2"}],
            timeouts={"first_token_s": 1.5, "total_s": 1.5},
        ) as gw,
    ):
        stuck = [asyncio.ensure_future(gw.post(chat())) for _ in range(20)]
        await gw.until(lambda: gw.gateway.scheduler.waiting == 18)
        for _ in range(10):
            async with asyncio.timeout(0.5):
                assert (await gw.post({**chat(), "model": "m2"})).status == 200
        for call in stuck[2:]:
            call.cancel()
        for call in stuck[:2]:
            assert (await call).status == 504
        dead.script = plain


async def test_waiting_costs_no_time_of_the_processor() -> None:
    """Case 66: idle, and with a queue that nothing can be done about."""
    async with (
        a_fake_backend(after(60)) as engine,
        a_gateway(
            engine,
            backends=[{"max_in_flight": 1}],
            health={"interval_s": 30, "timeout_s": 1},
        ) as gw,
    ):
        assert await _processor_s(0.5) < 0.05
        wires = [await gw.dial(chat()) for _ in range(60)]
        await gw.until(lambda: gw.gateway.scheduler.waiting == 59)
        assert await _processor_s(0.5) < 0.05
        for wire in wires:
            wire.reset()


async def _processor_s(wall_s: float) -> float:
    before_s = time.process_time()
    await asyncio.sleep(wall_s)
    return time.process_time() - before_s


async def test_what_waits_is_bounded_in_bytes_too() -> None:
    """Case 73: with a length and without one."""
    async with (
        a_fake_backend(after(0.5)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}], queue={"max_bytes": 500_000}) as gw,
    ):
        body = chat("x" * 100_000)

        async def pieces() -> object:
            text = str(body).replace("'", '"').encode()
            yield text[:50_000]
            yield text[50_000:]

        async def chunked() -> int:
            async with gw.session.post(
                gw.url + "/v1/chat/completions",
                data=pieces(),
                headers={"content-type": "application/json"},
            ) as response:
                return response.status

        running = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: len(engine.calls) == 1)
        told = [asyncio.ensure_future(chunked()) for _ in range(4)]
        told += [asyncio.ensure_future(_status(gw.post(body))) for _ in range(4)]
        await gw.until(lambda: sum(call.done() for call in told) == 4)
        queued = gw.gateway.scheduler.admission.total.body_bytes
        assert 400_000 < queued <= 500_000
        statuses = Counter(await asyncio.gather(*told))

        assert statuses == {200: 4, 503: 4}
        assert (await running).status == 200
        assert gw.gateway.scheduler.admission.total.body_bytes == 0


async def _status(call: object) -> int:
    reply = await call  # type: ignore[misc]  # an awaitable Reply
    return int(reply.status)


async def test_ids_that_clients_make_up_make_nothing_grow() -> None:
    """Cases 70, 178 and 180: sessions, flows, models, paths."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:

        async def page() -> int:
            metrics = (await gw.request("GET", "/metrics")).body
            return len([line for line in metrics.splitlines() if not line.startswith(b"#")])

        for _ in range(2):
            await gw.post(chat())
            await gw.post({**chat(), "model": "nope"})
            await gw.request("GET", "/nowhere")
            lines = await page()
        for number in range(60):
            ids = {
                "x-session-id": f"s{number}",
                "x-gateway-inference-fairness-id": f'f{number}"{{,',
            }
            assert (await gw.post(chat(), headers=ids)).status == 200
            assert (await gw.post({**chat(), "model": f'm"{number}\n'})).status == 404
            assert (await gw.request("GET", f"/v1/{number}")).status == 404
            assert (await gw.request("GET", f"/v1/models/{number}")).status == 404

        assert await page() == lines


async def test_a_huge_prompt_does_not_hold_the_loop() -> None:
    """Cases 181, 184, 187 and 188: 2 MB in one word, and 20,000 tiny messages."""
    tiny = {**chat(), "messages": [{"role": "user", "content": "a"}] * 20_000}
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat("a" * 2_000_000))
        for body in (chat("a" * 2_000_000), tiny):
            before_s = time.process_time()
            assert (await gw.post(body)).status == 200
            # Client, gateway and engine together.
            assert time.process_time() - before_s < 0.6


async def test_health_is_asked_of_engines_by_the_clock_and_not_by_clients() -> None:
    """Case 166."""
    health = {"interval_s": 30, "timeout_s": 1}
    async with a_fake_backend(plain) as engine, a_gateway(engine, health=health) as gw:
        asked = len(engine.probes)
        for path in ("/healthz", "/readyz", "/metrics", "/v1/models") * 5:
            await gw.request("GET", path)

        assert len(engine.probes) == asked


@pytest.mark.parametrize("ill", ["missing", "slow", "odd", "busy"])
async def test_broken_metrics_stop_no_traffic(ill: str) -> None:
    """Cases 62, 76 and 158."""

    def spoil(engine: FakeBackend) -> None:
        match ill:
            case "missing":
                engine.metrics = None
            case "slow":
                engine.slow_s["/metrics"] = 0.8
            case "odd":
                engine.metrics = b"<html>NaN 1e999 {{{"
            case "busy":
                engine.metrics = b"vllm:num_requests_waiting 50\nvllm:kv_cache_usage_perc 0.99\n"

    async with a_fake_backend(plain) as sick, a_fake_backend(plain) as fine:
        spoil(sick)
        async with a_gateway(sick, fine) as gw:
            for _ in range(8):
                assert (await gw.post(chat())).status == 200

            # Neither starved nor flooded.
            assert (len(sick.calls), len(fine.calls)) == (4, 4)
            sick.slow_s.clear()


async def test_what_is_sent_counts_at_once_and_not_at_the_next_scrape() -> None:
    """Case 63."""

    async def slow(exchange: Exchange) -> None:
        await after(0.3)(exchange)

    async with a_fake_backend(slow) as one, a_fake_backend(slow) as other:
        other.metrics = b"vllm:num_requests_waiting 3\n"
        backends = [{"max_in_flight": 5}, {"max_in_flight": 5}]
        async with a_gateway(one, other, backends=backends, policy={"name": "hexsage"}) as gw:
            await asyncio.gather(*[gw.post(chat()) for _ in range(14)])

            assert max(one.peak, other.peak) <= 5
            assert min(len(one.calls), len(other.calls)) >= 4


async def test_a_client_that_does_not_read_loses_its_place() -> None:
    """Case 96: its half; a vanished one is noticed by the kernel (gateway/api/protocol.py)."""
    flood = streams(*[frame("x" * 100_000)] * 400, gap_s=0.0)
    async with (
        a_fake_backend(flood) as engine,
        a_gateway(engine, limits={"slow_reader_s": 0.4}) as gw,
    ):
        await gw.dial(chat(stream=True))
        await gw.until(lambda: len(engine.calls) == 1)

        await gw.until(lambda: gw.settled() == {("abandoned", ""): 1}, within_s=5)
        await gw.until(lambda: engine.running == 0)
