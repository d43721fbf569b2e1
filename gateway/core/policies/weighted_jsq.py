"""weighted_jsq: the shortest queue, weighted by how fast the backend would do this call."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record


@dataclass(frozen=True, slots=True)
class WeightedJsq(Record):
    """(calls there + 1) x this call's unloaded time there: one line, and hard to beat."""

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return seconds: the call's own time, as many times over as calls share the backend."""
        del turn
        return [(load.pending + 1) * load.service_s(call) for load in loads]
