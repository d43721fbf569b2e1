"""Nothing of a request is left to the garbage collector, whose rounds pause everybody else."""

import gc
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest

from tests.api.harness import Json, Running, a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    USAGE,
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
REQUESTS = 5
STREAM = chat(stream=True, stream_options={"include_usage": True})
WHOLE_STREAM = streams(ROLE, *[frame("tok")] * 5, frame("", "stop"), USAGE, DONE)
Ask = Callable[[Running], Coroutine[object, object, None]]


def asks(call: Json | bytes) -> Ask:
    """A client that waits for its answer."""

    async def ask(gw: Running) -> None:
        await gw.post(call)

    return ask


async def asks_once(gw: Running) -> None:
    """A client that makes a connection for each call."""
    await gw.post(chat(), headers={"connection": "close"})


async def leaves(gw: Running) -> None:
    """A client that leaves inside a stream."""
    wire = await gw.dial(STREAM)
    await wire.read_until(b"tok")
    wire.close()
    await gw.until(lambda: gw.gateway.driver.in_flight == 0)


async def leaves_early(gw: Running) -> None:
    """A client that leaves before there is an answer."""
    wire = await gw.dial(chat())
    await gw.until(lambda: gw.gateway.driver.in_flight == 1)
    wire.close()
    await gw.until(lambda: gw.gateway.driver.in_flight == 0)


def of_ours() -> Counter[str]:
    """Collect; count what was left of the gateway's own."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(
            type(left).__qualname__
            for left in gc.garbage
            if type(left).__module__.startswith("gateway.")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize(
    ("script", "ask"),
    [
        (plain, asks(chat())),
        (plain, asks_once),
        (WHOLE_STREAM, asks(STREAM)),
        (streams(ROLE + frame("a", "stop") + USAGE + DONE), asks(STREAM)),
        (streams(*[frame("tok")] * 600, gap_s=0.1), leaves),
        (after(60.0), leaves_early),
        (streams(frame("a"), ends="reset"), asks(STREAM)),
        (answers(b"{}", "500 Internal Server Error"), asks(chat())),
        (answers(b"{}", "400 Bad Request"), asks(STREAM)),
        (resets, asks(chat())),
        (plain, asks(b"{")),
        (plain, asks({**chat(), "model": "nobody's"})),
    ],
    ids=[
        "whole",
        "own connection",
        "stream",
        "stream at once",
        "left",
        "left early",
        "broken off",
        "engine's fault",
        "client's fault",
        "reset",
        "no JSON",
        "no such model",
    ],
)
async def test_a_request_leaves_no_cycle(script: Script, ask: Ask) -> None:
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        await ask(gw)
        gc.collect()
        gc.disable()
        try:
            for _ in range(REQUESTS):
                await ask(gw)
            left = of_ours()
        finally:
            gc.enable()

    assert not left
