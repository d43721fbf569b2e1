"""What waits, how much of it, and what is said to the rest."""

import asyncio
from collections import Counter

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import DONE, a_fake_backend, after, frame, plain, streams

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [False, True])
async def test_as_many_run_and_wait_as_may_and_the_rest_is_told_at_once(stream: bool) -> None:
    """Cases 48 and 55: the slot is held until the body ends."""
    flows = streams(*[frame("t")] * 5, frame("", "stop"), DONE, gap_s=0.25)
    async with (
        a_fake_backend(flows if stream else after(1.5)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 2}], queue={"max_requests": 3}) as gw,
    ):
        calls = [asyncio.ensure_future(gw.post(chat(stream=stream))) for _ in range(8)]
        await gw.until(lambda: gw.settled() == {("rejected", "queue_full"): 3}, within_s=1.2)
        replies = await asyncio.gather(*calls)

        assert Counter(reply.status for reply in replies) == {200: 5, 503: 3}
        assert engine.peak == 2
        for reply in replies:
            if reply.status == 503:
                assert reply.error["code"] == "queue_full"
                assert int(reply.headers["retry-after"]) >= 1
                assert int(reply.headers["retry-after-ms"]) >= 1
                assert reply.headers["x-should-retry"] == "true"


async def test_who_waits_too_long_is_told_and_never_sent() -> None:
    """Cases 59 and 74."""
    async with (
        a_fake_backend(after(1.0)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}], queue={"timeout_s": 0.3}) as gw,
    ):
        running = asyncio.ensure_future(gw.post(chat()))
        await gw.until(lambda: len(engine.calls) == 1)
        waiting = [asyncio.ensure_future(gw.post(chat())) for _ in range(5)]
        for reply in await asyncio.gather(*waiting):
            assert (reply.status, reply.error["code"]) == (503, "queue_timeout")

        assert (await running).status == 200
        assert len(engine.calls) == 1


async def test_a_queue_of_no_length_lets_nobody_wait() -> None:
    """Case 49."""
    async with (
        a_fake_backend(after(0.2)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}], queue={"max_requests": 1}) as gw,
    ):
        replies = await asyncio.gather(*[gw.post(chat()) for _ in range(3)])

        assert Counter(reply.status for reply in replies) == {200: 2, 503: 1}


async def test_a_freed_slot_is_used_at_once() -> None:
    """Case 67."""
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 1}]) as gw,
    ):
        began_at = asyncio.get_running_loop().time()
        replies = await asyncio.gather(*[gw.post(chat()) for _ in range(100)])

        assert {reply.status for reply in replies} == {200}
        assert asyncio.get_running_loop().time() - began_at < 2.0
