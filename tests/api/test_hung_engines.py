"""An engine that hangs, over HTTP: its calls run elsewhere, and it gets no more until it speaks."""

import asyncio

import pytest

from gateway.core.breaker import BreakerState
from gateway.core.types import BackendId
from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import DONE, Exchange, a_fake_backend, frame, plain, streams

pytestmark = pytest.mark.anyio

HUNG = BackendId("e0")


async def hangs(exchange: Exchange) -> None:
    """Take the call and say nothing."""
    await exchange.pause(60)


async def test_calls_on_an_engine_that_hangs_are_answered_by_another() -> None:
    async with (
        a_fake_backend(hangs) as hung,
        a_fake_backend(streams(frame("a", "stop"), DONE)) as sound,
        a_gateway(hung, sound, health={"stall_s": 2, "cooldown_s": 30}) as gw,
    ):
        replies = await asyncio.gather(*(gw.post(chat(stream=True)) for _ in range(4)))

        assert [reply.status for reply in replies] == [200] * 4
        assert len(hung.calls) == 2
        await gw.until(lambda: all(seen.gone_at is not None for seen in hung.calls))
        ids = [seen.headers["x-request-id"] for seen in hung.calls + sound.calls]
        assert len(set(ids)) == 6
        load = gw.gateway.scheduler.fleet.loads[HUNG]
        assert load.breaker.state is BreakerState.OPEN
        assert gw.settled() == {("completed", ""): 4}


async def test_a_stream_that_hangs_after_its_first_byte_is_not_begun_anew() -> None:
    script = streams(frame("a"), ends="never")
    async with (
        a_fake_backend(script) as hung,
        a_fake_backend(plain) as sound,
        a_gateway(hung, sound, health={"stall_s": 2}, timeouts={"inter_token_s": 4.5}) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert b"timeout_inter_token" in reply.body
        assert (len(hung.calls), len(sound.calls)) == (1, 0)


async def test_streams_that_go_on_slowly_and_readers_that_are_slow_are_no_hanging() -> None:
    big = frame("x" * 60_000)
    async with (
        a_fake_backend(streams(*[frame("a")] * 8, frame("b", "stop"), DONE, gap_s=0.5)) as slow,
        a_fake_backend(streams(*[big] * 200, frame("b", "stop"), DONE)) as fast,
        a_gateway(slow, fast, health={"stall_s": 2}) as gw,
    ):
        first = asyncio.ensure_future(gw.post(chat(stream=True)))
        await gw.until(lambda: len(slow.calls) == 1)
        lazy = await gw.dial(chat(stream=True))
        await lazy.read_until(b"\r\n\r\n")

        reply = await first

        assert reply.body.endswith(DONE)
        states = {load.breaker.state for load in gw.gateway.scheduler.fleet.loads.values()}
        assert states == {BreakerState.CLOSED}
        lazy.reset()


async def test_a_slow_reader_does_not_hide_that_an_engine_hangs() -> None:
    big = streams(*[frame("x" * 60_000)] * 200, frame("b", "stop"), DONE)

    async def hangs_later(exchange: Exchange) -> None:
        await (big if len(hung.calls) == 1 else hangs)(exchange)

    async with (
        a_fake_backend(hangs_later) as hung,
        a_fake_backend(plain) as sound,
        a_gateway(hung, sound, health={"stall_s": 2, "cooldown_s": 30}) as gw,
    ):
        lazy = await gw.dial(chat(stream=True))
        await lazy.read_until(b"\r\n\r\n")
        assert (await gw.post(chat(stream=True))).status == 200  # it is the other's turn

        reply = await gw.post(chat(stream=True))

        assert reply.status == 200
        assert (len(hung.calls), len(sound.calls)) == (2, 2)
        lazy.reset()
