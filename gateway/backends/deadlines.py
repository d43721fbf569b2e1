"""Deadlines: ends tasks that take too long, with one timer for all of them.

`asyncio.timeout` makes and takes back a timer for each call; nearly none of them ever fires.
"""

import asyncio
from math import inf


class Deadlines:
    """By when tasks must be done with what they do. On one event loop."""

    __slots__ = ("_due", "_late", "_timer", "_timer_at")

    def __init__(self) -> None:
        self._due: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._due)

    def begin(self, task: "asyncio.Task[object]", at: float) -> None:
        """Cancel the task at this instant of the loop's clock, unless it ends before."""
        self._due[task] = at
        if at < self._timer_at:
            self._arm(at)

    def end(self, task: "asyncio.Task[object]") -> bool:
        """It is done, or was cancelled; return whether that was for being late."""
        self._due.pop(task, None)
        if task in self._late:
            self._late.remove(task)
            return True
        return False

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        """Cancel who is late. The timer may stand for a task that has long ended."""
        self._timer, self._timer_at = None, inf
        now = asyncio.get_running_loop().time()
        for task, at in list(self._due.items()):
            if at <= now:
                del self._due[task]
                self._late.add(task)
                task.cancel()
        if self._due:
            self._arm(min(self._due.values()))
