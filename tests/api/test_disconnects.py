"""A client that leaves takes its work with it within a second, wherever that work is."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from gateway.api.disconnect import Presence, client_present
from tests.api.harness import Json, Running, Wire, a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    Exchange,
    FakeBackend,
    Script,
    a_fake_backend,
    after,
    frame,
    plain,
    resets,
    streams,
)

pytestmark = pytest.mark.anyio
ENDLESS = streams(*[frame("tok")] * 600, gap_s=0.1)
LEAVES: list[Callable[[Wire], None]] = [Wire.reset, Wire.close]
PROMPT: Json = {"model": "m1", "prompt": "hi", "max_tokens": 8}


async def test_who_is_done_before_it_is_heard_that_the_client_has_gone_is_left_alone() -> None:
    presence = Presence()
    presence.gone()

    async def work() -> str:
        async with client_present(asyncio.Event().wait, presence=presence):  # type: ignore[arg-type]
            pass
        await asyncio.sleep(0)
        return "done"

    assert await asyncio.ensure_future(work()) == "done"


async def all_gone(gw: Running, *engines: FakeBackend) -> None:
    """Every engine that was left sees it within a second, and the books are closed."""
    await gw.until(lambda: gw.gateway.driver.in_flight == 0, within_s=1.0)
    for engine in engines:
        await gw.until(lambda: engine.running == 0, within_s=1.0)  # noqa: B023 - awaited here


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize(
    ("path", "call"),
    [("/v1/chat/completions", chat(stream=True)), ("/v1/completions", {**PROMPT, "stream": True})],
)
async def test_leaving_a_stream_stops_it(
    leave: Callable[[Wire], None], path: str, call: Json
) -> None:
    """Cases 32, 37 and 38."""
    async with a_fake_backend(ENDLESS) as engine, a_gateway(engine) as gw:
        wire = await gw.dial(call, path)
        for _ in range(3):
            await wire.read_until(b"\n\n")
        leave(wire)

        await all_gone(gw, engine)
        assert engine.calls[0].gone_at is not None
        assert gw.settled() == {("abandoned", ""): 1}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "call"), [("/v1/chat/completions", chat()), ("/v1/completions", PROMPT)]
)
async def test_leaving_before_the_first_byte_stops_the_engine(
    leave: Callable[[Wire], None], stream: bool, path: str, call: Json
) -> None:
    """Case 34."""
    async with a_fake_backend(after(8)) as engine, a_gateway(engine) as gw:
        wire = await gw.dial({**call, "stream": stream}, path)
        await gw.until(lambda: len(engine.calls) == 1)
        await asyncio.sleep(0.05)
        leave(wire)

        await all_gone(gw, engine)
        assert engine.calls[0].gone_at is not None
        assert gw.settled() == {("abandoned", ""): 1}


@pytest.mark.parametrize("leave", LEAVES)
async def test_who_leaves_the_queue_is_never_sent(leave: Callable[[Wire], None]) -> None:
    """Case 35."""
    async with (
        a_fake_backend(after(0.4)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}]) as gw,
    ):
        wires = []
        for number in range(5):
            wires.append(await gw.dial(chat(f"call {number}")))
            await gw.until(lambda: gw.gateway.driver.in_flight == len(wires))
        leave(wires[1])
        leave(wires[3])
        await gw.until(lambda: gw.gateway.scheduler.waiting == 2)
        for number in (0, 2, 4):
            assert b"200 OK" in await wires[number].read_until(b"}]")
            wires[number].close()

        served = [str(seen.json["messages"]) for seen in engine.calls]
        assert [number for number in range(5) if f"call {number}" in " ".join(served)] == [0, 2, 4]
        assert engine.peak == 1


async def test_leaving_is_followed_to_the_backend_that_took_over() -> None:
    """Case 41."""
    async with (
        a_fake_backend(resets) as first,
        a_fake_backend(ENDLESS) as second,
        a_gateway(first, second) as gw,
    ):
        wires = [await gw.dial(chat(stream=True)) for _ in range(2)]
        for wire in wires:
            await wire.read_until(b"\n\n")
        assert first.calls
        for wire in wires:
            wire.reset()

        await all_gone(gw, first, second)


async def test_nobody_is_served_for_a_client_that_left_while_an_error_was_read() -> None:
    """Case 43."""
    is_begun = asyncio.Event()

    async def slow_error(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n")
        is_begun.set()
        await exchange.pause(0.5)
        await exchange.send(b"{}")

    async with (
        a_fake_backend(slow_error) as first,
        a_fake_backend(slow_error) as second,
        a_gateway(first, second) as gw,
    ):
        wire = await gw.dial(chat())
        await is_begun.wait()
        wire.reset()

        await all_gone(gw, first, second)
        assert len(first.calls) + len(second.calls) == 1
        assert gw.settled() == {("abandoned", ""): 1}


async def test_neighbours_with_similar_or_equal_ids_are_not_touched() -> None:
    """Cases 40 and 177."""
    flows = streams(*[frame("tok")] * 10, frame("", "stop"), DONE, gap_s=0.05)
    async with a_fake_backend(flows) as engine, a_gateway(engine) as gw:
        stays = [
            asyncio.ensure_future(
                gw.post(chat(f"text {n}", stream=True), headers={"x-request-id": "job-1"})
            )
            for n in range(5)
        ]
        wire = await gw.dial(chat(stream=True))
        await wire.read_until(b"\n\n")
        wire.reset()
        replies = [await stay for stay in stays]

        assert all(reply.body.endswith(DONE) for reply in replies)
        assert {reply.headers["x-request-id"] for reply in replies} == {"job-1"}
        upstream_ids = {seen.headers["x-request-id"] for seen in engine.calls}
        assert len(upstream_ids) == 6


async def test_no_slot_is_lost_to_clients_that_leave_at_random() -> None:
    """Case 45."""
    random = Random(5)
    scripts: list[Script] = [
        streams(*[frame("tok")] * 5, frame("", "stop"), DONE, gap_s=0.005),
        after(0.05),
        plain,
    ]

    async def mixed(exchange: Exchange) -> None:
        await random.choice(scripts)(exchange)

    async with (
        a_fake_backend(mixed) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 4}]) as gw,
    ):

        async def drop() -> None:
            wire = await gw.dial(chat(stream=random.random() < 0.7))
            await asyncio.sleep(random.uniform(0, 0.06))
            random.choice(LEAVES)(wire)

        for _ in range(10):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(20):
                    tasks.create_task(drop())
        await all_gone(gw, engine)

        engine.script = after(0.1)
        replies = await asyncio.gather(*[gw.post(chat()) for _ in range(4)])
        assert [reply.status for reply in replies] == [200] * 4
        assert sum(gw.settled().values()) <= 204


async def test_a_client_that_leaves_in_its_upload_costs_nothing() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
        writer.write(head)
        await asyncio.sleep(0.05)
        Wire(reader, writer).reset()
        await asyncio.sleep(0.05)

        assert engine.calls == []
        assert gw.settled() == {}
