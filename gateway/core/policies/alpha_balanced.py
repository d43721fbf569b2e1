"""alpha_balanced: HexGen-Flow's dispatch, a blend of a backend's speed and its backlog.

HexGen-Flow (arXiv 2505.05286) scores each instance for a call q by alpha x speed - (1 - alpha) x
queue. Paper and published code differ, so there are three forms; `bounded`, the default, keeps
both terms in [0, 1] and has no scale constant to tune.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record


class Score(StrEnum):
    """Which form of the score."""

    BOUNDED = "bounded"
    """alpha x min t / t(m) - (1 - alpha) x Q(m) / max Q, Q = outstanding predicted seconds."""
    PAPER = "paper"
    """(1 - alpha) x beta / Q(m) - alpha x t(m), as quoted in the paper's public review."""
    CODE = "code"
    """alpha x t(first) / t(m) - (1 - alpha) x f(m) W(m) / W(first), W = all work ever given."""


CODE_FACTORS = {"A6000": 0.5, "L40S": 0.5}
"""f(m) of the published code: set by hand there, by GPU."""


@dataclass(frozen=True, slots=True)
class AlphaBalanced(Record):
    """alpha = 1 sees only how fast a backend is; alpha = 0 only how much already waits there."""

    alpha: float
    score: Score = Score.BOUNDED
    beta: float = 10.0
    """Scale of the paper form, in seconds squared: its two terms have different units."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], not {self.alpha}")
        if self.beta <= 0:
            raise ValueError(f"beta must be > 0, not {self.beta}")

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return the negated score of each backend: here lower is better."""
        del turn
        times_s = [load.service_s(call) for load in loads]
        match self.score:
            case Score.BOUNDED:
                return self._bounded(times_s, [load.backlog_s for load in loads])
            case Score.PAPER:
                return self._paper(times_s, [load.backlog_s for load in loads])
            case Score.CODE:
                return self._code(times_s, loads)

    def _bounded(self, times_s: list[float], queues_s: list[float]) -> list[float]:
        fastest_s = min(times_s)
        longest_s = max(queues_s)
        return [
            (1 - self.alpha) * (queue_s / longest_s if longest_s > 0 else 0.0)
            - self.alpha * fastest_s / time_s
            for time_s, queue_s in zip(times_s, queues_s, strict=True)
        ]

    def _paper(self, times_s: list[float], queues_s: list[float]) -> list[float]:
        return [
            self.alpha * time_s - (1 - self.alpha) * self.beta / max(queue_s, 1e-3)
            for time_s, queue_s in zip(times_s, queues_s, strict=True)
        ]

    def _code(self, times_s: list[float], loads: Sequence[BackendLoad]) -> list[float]:
        first_s, first_work_s = times_s[0], loads[0].assigned_s
        if first_work_s <= 0:
            return [0.0 if index == 0 else 1.0 for index in range(len(loads))]
        return [
            (1 - self.alpha)
            * CODE_FACTORS.get(load.profile.name, 1.0)
            * load.assigned_s
            / first_work_s
            - self.alpha * first_s / time_s
            for time_s, load in zip(times_s, loads, strict=True)
        ]
