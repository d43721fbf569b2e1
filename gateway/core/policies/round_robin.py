"""round_robin: each backend in turn, whatever it is and whatever it has to do."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record

GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class RoundRobin(Record):
    """Strict turns among equal weights; by weight, turns spread evenly, otherwise."""

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return 0 for the backend whose turn it is and 1 for the others."""
        del call
        weights = [load.backend.weight for load in loads]
        if len(set(weights)) == 1:
            chosen = turn % len(loads)
        else:
            # Multiples of the golden ratio fill [0, 1) evenly, however many are taken.
            cumulative = list(accumulate(weights))
            point = (turn * GOLDEN_RATIO) % 1.0 * cumulative[-1]
            chosen = min(bisect_right(cumulative, point), len(loads) - 1)
        return [0.0 if index == chosen else 1.0 for index in range(len(loads))]
