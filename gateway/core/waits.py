"""Waits: who waits, held or queued or for another attempt, and until when each may."""

from collections import deque
from collections.abc import Iterator

from gateway.core.call import Call, CallState

WAITING = frozenset({CallState.HELD, CallState.QUEUED, CallState.PAUSED})

Entry = tuple[float, Call]
"""Since when it waits, and who."""

SLACK = 64
"""Entries of calls that wait no longer may outnumber the others by this before they are dropped."""


class Waits:
    """Calls in lines of those that may wait equally long, so the first of a line leaves it first.

    Almost all calls may wait as long as the queue allows; the lines of models that say otherwise
    are few. `timeout_s` is the queue's, as it is when asked.
    """

    def __init__(self) -> None:
        self._lines: dict[float | None, deque[Entry]] = {}
        self._limit = SLACK

    def __len__(self) -> int:
        """How many entries there are, those of calls that wait no longer among them."""
        return sum(map(len, self._lines.values()))

    def add(self, call: Call, now: float) -> None:
        """A call waits from now on."""
        call.waits_since = now
        if len(self) >= self._limit:
            self._sweep()
        line = self._lines.get(call.request.queue_timeout_s)
        if line is None:
            line = self._lines[call.request.queue_timeout_s] = deque()
        line.append((now, call))

    def next_at(self, timeout_s: float) -> float | None:
        """Return when the next call has waited too long; None if nobody waits."""
        line = self._next_line(timeout_s)
        return None if line is None else self._ends_at(line, timeout_s)

    def due(self, timeout_s: float, now: float) -> Iterator[Call]:
        """Yield the calls that have waited too long, who must go first first."""
        while (line := self._next_line(timeout_s)) is not None:
            if self._ends_at(line, timeout_s) > now:
                return
            yield line.popleft()[1]

    def latest_first(self) -> list[Call]:
        """Return everybody who waits, who has waited least first."""
        waiting = [entry for line in self._lines.values() for entry in line if _waits(entry)]
        waiting.sort(key=lambda entry: (entry[0], entry[1].sequence), reverse=True)
        return [call for _, call in waiting]

    def _sweep(self) -> None:
        """Drop the dead: behind a head that waits nobody else would, until its time is over."""
        self._lines = {key: deque(filter(_waits, line)) for key, line in self._lines.items()}
        self._limit = 2 * len(self) + SLACK

    def _next_line(self, timeout_s: float) -> deque[Entry] | None:
        """Return the line whose first call must go first, without those who wait no longer."""
        for longest_s, line in list(self._lines.items()):
            while line and not _waits(line[0]):
                line.popleft()
            if not line:
                del self._lines[longest_s]
        if not self._lines:
            return None
        return min(self._lines.values(), key=lambda line: self._ends_at(line, timeout_s))

    @staticmethod
    def _ends_at(line: deque[Entry], timeout_s: float) -> float:
        since, call = line[0]
        own_s = call.request.queue_timeout_s
        return since + (timeout_s if own_s is None else own_s)


def _waits(entry: Entry) -> bool:
    since, call = entry
    return call.state in WAITING and call.waits_since == since
