"""Retries: how many there may be, and how long each waits.

A retry on another backend is sent at once; one on a backend that has failed the call before waits,
longer each time and never two calls equally long. All of them together are a share of the traffic,
so that a fleet that fails is not asked three times as much for it.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from zlib import crc32

from gateway.core.call import Call, CallState
from gateway.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules(Record):
    """What a call, and all calls together, may try again."""

    max_attempts: int = 3
    share: float = 0.2
    """Retries for each first attempt, in the long run."""
    burst: int = 256
    """So many more at once: what one backend held when it died must find another place."""
    backoff_s: float = 0.05
    max_backoff_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.share < 0 or self.burst < 0 or self.backoff_s < 0:
            raise ValueError("max_attempts must be >= 1 and the others >= 0")

    def pause_s(self, request_id: str, attempts: int) -> float:
        """Return how long a call waits that has failed so often; the jitter hangs on its id."""
        span_s = min(self.backoff_s * 2.0 ** (attempts - 1), self.max_backoff_s)
        return span_s * (0.5 + crc32(f"{request_id}/{attempts}".encode()) / 2**33)


class Retries:
    """The budget, and the calls that wait for their next attempt."""

    def __init__(self, rules: RetryRules) -> None:
        self.rules = rules
        self._budget = float(rules.burst)
        self._paused: list[tuple[float, int, Call]] = []

    def earn(self) -> None:
        """A call was sent for the first time."""
        self._budget = min(self._budget + self.rules.share, float(self.rules.burst))

    def may(self, call: Call) -> bool:
        """Return whether a call that has failed may be tried again; if so that is counted."""
        if call.attempts >= self.rules.max_attempts or self._budget < 1:
            return False
        self._budget -= 1
        return True

    def pause(self, call: Call, now: float) -> None:
        """Let a call wait before its next attempt."""
        call.state = CallState.PAUSED
        until = now + self.rules.pause_s(call.request.id, call.attempts)
        heappush(self._paused, (until, call.sequence, call))

    def due(self, now: float) -> list[Call]:
        """Return the calls that have waited long enough, in order."""
        calls = []
        while self._paused and self._paused[0][0] <= now:
            call = heappop(self._paused)[2]
            if call.state is CallState.PAUSED:
                calls.append(call)
        return calls

    def next_at(self) -> float | None:
        """Return when the next call has waited long enough."""
        while self._paused and self._paused[0][2].state is not CallState.PAUSED:
            heappop(self._paused)
        return self._paused[0][0] if self._paused else None
