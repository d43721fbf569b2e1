"""Breaker: whether a backend whose calls fail may be given more of them.

Closed while calls succeed. Open, and given nothing, after several failures in a row or too many of
its last calls. When a cool-down is over it is half open: one call at a time is let in on trial. A
trial that succeeds closes it, one that fails opens it for longer. Whoever comes back, from here or
from the dead, is given little at first: its share of its own budget grows in steps.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

from gateway.core.record import Record

RAMP_STEPS = 10
JITTER = 0.25
"""Cool-downs are up to this much longer, by a hash: a fleet must not come back in step."""


class BreakerState(StrEnum):
    """Whether calls are let in."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules(Record):
    """When a backend is bad, and how it comes back."""

    failures: int = 5
    """So many in a row open the breaker."""
    error_share: float = 0.5
    """So does this share of the last calls that ended, once there are half of `window`."""
    window: int = 20
    cooldown_s: float = 5.0
    """Doubled with each opening that follows soon on the last."""
    max_cooldown_s: float = 120.0
    ramp_s: float = 8.0
    """How long it takes until a backend that is back has all of its budget."""
    max_ejected_share: float = 0.5
    """Of the backends of a model that are up, no more than this share is kept out."""
    silence_s: float = 60.0
    silence_factor: float = 4.0
    """A backend is bad, too, if no call gives a sign of life for `silence_s`, and for this many
    times what its oldest call should take in all."""
    stall_s: float | None = None
    """Where calls stream: for `stall_s`, and `silence_factor` times what the next token should
    take. None: nobody feeds `Heard`, so nothing is known between a stream's ends."""

    def __post_init__(self) -> None:
        if self.failures < 1 or self.window < 2 or self.cooldown_s <= 0:
            raise ValueError("failures must be >= 1, window >= 2 and cooldown_s > 0")
        if self.ramp_s < 0 or self.silence_s <= 0 or self.max_cooldown_s <= 0:
            raise ValueError("ramp_s must be >= 0, silence_s and max_cooldown_s > 0")
        if self.stall_s is not None and self.stall_s <= 0:
            raise ValueError("stall_s must be > 0")
        if not 0 <= self.max_ejected_share <= 1 or not 0 < self.error_share <= 1:
            raise ValueError("max_ejected_share and error_share must be shares")


class Breaker:
    """One backend's. It is told how calls end; others ask `admits` and `ramp`."""

    __slots__ = (
        "_closed_at",
        "_failures",
        "_name",
        "_openings",
        "_outcomes",
        "_ramp_from",
        "_until",
        "ramp",
        "state",
        "trial",
    )

    def __init__(self, name: str) -> None:
        self.state = BreakerState.CLOSED
        self.trial: str | None = None
        """The request that is on trial."""
        self.ramp = 1.0
        """The share of its budget that the backend may have."""
        self._name = name
        self._failures = 0
        self._outcomes: deque[bool] = deque()
        self._openings = 0
        """In a row: the next cool-down's exponent."""
        self._until = 0.0
        self._closed_at = 0.0
        self._ramp_from: float | None = None

    @property
    def admits(self) -> bool:
        """Whether a call may be sent."""
        return self.trial is None if self.state is BreakerState.HALF_OPEN else not self.is_open

    @property
    def is_open(self) -> bool:
        """Whether it is kept out."""
        return self.state is BreakerState.OPEN

    @property
    def is_at_rest(self) -> bool:
        """Whether time alone changes nothing."""
        return self._ramp_from is None and not self.is_open

    def started(self, request_id: str) -> None:
        """A call was sent; if the breaker is half open, it is on trial."""
        if self.state is BreakerState.HALF_OPEN and self.trial is None:
            self.trial = request_id

    def is_bad(self, rules: HealthRules) -> bool:
        """Return whether what was counted is enough to open it."""
        seen, bad = len(self._outcomes), self._outcomes.count(False)
        return self._failures >= rules.failures or (
            2 * seen >= rules.window and bad >= rules.error_share * seen
        )

    def count(self, succeeded: bool, rules: HealthRules) -> None:
        """A call ended and says something of the backend."""
        self._failures = 0 if succeeded else self._failures + 1
        self._outcomes.append(succeeded)
        if len(self._outcomes) > rules.window:
            self._outcomes.popleft()

    def open(self, now: float, rules: HealthRules) -> None:
        """Keep the backend out; a later opening never shortens an earlier one."""
        if self.state is BreakerState.CLOSED and now - self._closed_at > rules.max_cooldown_s:
            self._openings = 0
        self._openings += 1
        self._forget()
        span_s = min(rules.cooldown_s * 2.0 ** min(self._openings - 1, 30), rules.max_cooldown_s)
        chance = crc32(f"{self._name}/{self._openings}".encode()) / 2**32
        self._until = max(self._until, now + span_s * (1 + JITTER * chance))
        self._ramp_from = None
        self.state = BreakerState.OPEN

    def close(self, now: float, rules: HealthRules) -> None:
        """Let the backend in again, little by little."""
        self._forget()
        self.state = BreakerState.CLOSED
        self._closed_at = now
        self.warm_up(now, rules)

    def warm_up(self, now: float, rules: HealthRules) -> None:
        """It is back: begin with a small share."""
        self._ramp_from = now if rules.ramp_s > 0 else None
        self.ramp = 1 / RAMP_STEPS if rules.ramp_s > 0 else 1.0

    def reset(self) -> None:
        """An operator says that it is well."""
        self._forget()
        self.state = BreakerState.CLOSED
        self.ramp = 1.0
        self._openings = 0
        self._until = 0.0
        self._ramp_from = None

    def next_at(self, rules: HealthRules) -> float | None:
        """Return when time alone changes something."""
        if self.is_open:
            return self._until
        if self._ramp_from is None:
            return None
        return self._ramp_from + round(self.ramp * RAMP_STEPS) * rules.ramp_s / RAMP_STEPS

    def look(self, now: float, rules: HealthRules) -> bool:
        """Do what is due; return whether something changed."""
        at = self.next_at(rules)
        if at is None or now < at:
            return False
        if self.is_open:
            self.state = BreakerState.HALF_OPEN
            return True
        assert self._ramp_from is not None
        steps = RAMP_STEPS
        if rules.ramp_s > 0:
            steps = int((now - self._ramp_from) / rules.ramp_s * RAMP_STEPS) + 1
            steps = max(steps, round(self.ramp * RAMP_STEPS) + 1)  # rounding must not stop it
        self.ramp = min(steps / RAMP_STEPS, 1.0)
        if self.ramp >= 1.0:
            self._ramp_from = None
        return True

    def _forget(self) -> None:
        self._failures = 0
        self._outcomes.clear()
        self.trial = None
