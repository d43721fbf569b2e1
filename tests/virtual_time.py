"""An event loop whose clock jumps: sleeping takes no time, and time is exact.

When nothing is ready to run, the clock leaps to the very instant for which the next timer was set,
so that an event at 1.25 s happens at 1.25 and not a rounding error later.
"""

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.timers: list[float] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            while self.timers and self.timers[0] <= self.now:
                heappop(self.timers)
            self.now = self.timers[0] if self.timers else self.now + timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual instant."""
        return self._jumping.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, and note the instant for which it was set."""
        heappush(self._jumping.timers, when)
        return super().call_at(when, callback, *args, context=context)


class VirtualClock:
    """The clock of the virtual loop."""

    def now(self) -> float:
        """Return the virtual instant."""
        return asyncio.get_running_loop().time()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def sleep_until(at: float) -> None:
    """Sleep until an exact instant; `asyncio.sleep(at - now)` may miss it by a rounding error."""
    loop = asyncio.get_running_loop()
    if at <= loop.time():
        return
    woken = loop.create_future()
    loop.call_at(at, woken.set_result, None)
    await woken
