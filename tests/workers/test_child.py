"""When a parent takes its child for hung. Real ones are killed in test_processes."""

from gateway.workers.child import START_BEATS, Child
from gateway.workers.launch import BEATS, READY
from tests.virtual_time import run_in_virtual_time


async def a_child() -> Child:
    return Child()


def ticks(child: Child, count: int) -> list[int]:
    """Let so many ticks pass in silence; return at which of them it is taken for hung."""
    return [number for number in range(1, count + 1) if child.tick()]


def test_who_serves_hangs_after_some_ticks_of_silence_and_only_once() -> None:
    child = run_in_virtual_time(a_child())
    child.pipe_data_received(1, READY)
    assert ticks(child, BEATS - 1) == []
    child.pipe_data_received(1, READY)

    assert ticks(child, 10 * BEATS) == [BEATS]


def test_who_does_not_serve_yet_has_more_time() -> None:
    child = run_in_virtual_time(a_child())
    assert ticks(child, START_BEATS - 1) == []
    child.pipe_data_received(1, READY)

    assert ticks(child, BEATS) == [BEATS]
    assert ticks(run_in_virtual_time(a_child()), 2 * START_BEATS) == [START_BEATS]
