"""Clock: the one place where the gateway looks at the time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, in seconds on a monotonic scale."""

    def now(self) -> float:
        """Return the present instant."""


class MonotonicClock:
    """The machine's own, finer than the event loop's, which may tick in milliseconds."""

    # Itself, not a method around it: every request asks some ten times.
    now = staticmethod(time.monotonic)  # noqa: TID251 - this is the clock that others are told to ask
