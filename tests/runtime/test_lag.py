"""How late the loop is, measured in virtual time."""

import asyncio

import pytest

from gateway.runtime.lag import EVERY_S, LoopLag
from tests.virtual_time import VirtualLoop, run_in_virtual_time


async def watched(lag: LoopLag, rounds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(rounds * EVERY_S):
            await lag.watch()


def test_a_loop_with_nothing_else_to_do_is_never_late() -> None:
    lag = LoopLag()
    run_in_virtual_time(watched(lag, 10.5))

    assert sum(lag.seconds.counts) == 10
    assert lag.seconds.total < 1e-6


def test_what_keeps_the_loop_shows() -> None:
    lag = LoopLag()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def toil() -> None:
            loop._jumping.now += 0.3  # the callback takes that long

        loop.call_later(0.05, toil)
        await watched(lag, 5.5)

    run_in_virtual_time(main())

    assert lag.seconds.total == pytest.approx(0.25)
