"""Deadlines: who is late is cancelled, once, by one timer; who is in time never hears of it."""

import asyncio

import pytest

from gateway.backends.deadlines import Deadlines
from tests.virtual_time import run_in_virtual_time, sleep_until


async def _wait(deadlines: Deadlines, limit_s: float, takes_s: float) -> str:
    """Return how it went."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    deadlines.begin(task, loop.time() + limit_s)
    try:
        await asyncio.sleep(takes_s)
    except asyncio.CancelledError:
        is_late = deadlines.end(task)
        others = task.uncancel()
        return f"{'late' if is_late else 'cancelled'} at {loop.time():g}, {others} more"
    assert not deadlines.end(task)
    return f"done at {loop.time():g}"


def test_each_is_cancelled_at_its_own_instant_and_the_others_are_not() -> None:
    deadlines = Deadlines()

    async def main() -> list[str]:
        waits = [(5.0, 9.0), (3.0, 1.0), (2.0, 9.0), (60.0, 8.0), (2.0, 9.0)]
        return await asyncio.gather(*(_wait(deadlines, *wait) for wait in waits))

    assert run_in_virtual_time(main()) == [
        "late at 5, 0 more",
        "done at 1",
        "late at 2, 0 more",
        "done at 8",
        "late at 2, 0 more",
    ]


def test_a_later_deadline_holds_after_the_timer_fired_for_nobody() -> None:
    deadlines = Deadlines()

    async def main() -> list[str]:
        first = await _wait(deadlines, 2.0, 1.0)
        return [first, await _wait(deadlines, 4.0, 9.0)]

    assert run_in_virtual_time(main()) == ["done at 1", "late at 5, 0 more"]


@pytest.mark.parametrize("at", [1.0, 5.0])
def test_who_is_cancelled_by_somebody_else_is_not_taken_for_late_alone(at: float) -> None:
    deadlines = Deadlines()

    async def main() -> str:
        task = asyncio.ensure_future(_wait(deadlines, 5.0, 9.0))
        await sleep_until(at)
        task.cancel()
        return await task

    said = run_in_virtual_time(main())
    assert said in {1.0: ["cancelled at 1, 0 more"], 5.0: ["late at 5, 1 more"]}[at]


def test_nothing_is_kept_of_who_has_ended() -> None:
    deadlines = Deadlines()

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in range(1000):
            deadlines.begin(task, 100.0 + number)
            assert not deadlines.end(task)
        return len(deadlines)

    assert run_in_virtual_time(main()) == 0
