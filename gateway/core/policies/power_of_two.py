"""p2c: two backends picked by lot, the one with fewer calls wins."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Record):
    """Needs to look at two backends only, so it scales; the lot is a hash of the turn."""

    seed: int = 0

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return the calls on the two drawn backends; infinity for the rest."""
        del call
        count = len(loads)
        draw = _mix(turn + self.seed * _GOLDEN)
        first = draw % count
        second = (first + 1 + (draw >> 32) % (count - 1)) % count if count > 1 else first
        return [
            float(load.pending) if index in (first, second) else float("inf")
            for index, load in enumerate(loads)
        ]


def _mix(value: int) -> int:
    """SplitMix64: consecutive numbers in, well-spread 64-bit numbers out."""
    value = (value + 1) * _GOLDEN & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
