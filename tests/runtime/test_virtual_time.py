"""Time that jumps jumps to the instants that were asked for."""

import asyncio

from tests.virtual_time import run_in_virtual_time, sleep_until


def test_an_hour_passes_at_once_and_to_the_second() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 3600.0


def test_sleepers_wake_in_order_at_their_exact_instants() -> None:
    woken: list[float] = []

    async def sleeper(at: float) -> None:
        await sleep_until(at)
        woken.append(asyncio.get_running_loop().time())

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for at in (0.3, 0.1, 7.0, 1 / 3):
                tasks.create_task(sleeper(at))

    run_in_virtual_time(main())

    assert woken == [0.1, 0.3, 1 / 3, 7.0]


def test_a_cancelled_timer_stops_nobody() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_at(1.0, lambda: None).cancel()
        await sleep_until(2.0)
        return loop.time()

    assert run_in_virtual_time(main()) == 2.0
