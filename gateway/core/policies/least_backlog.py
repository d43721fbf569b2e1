"""least_backlog: the backend with the fewest calls (join the shortest queue)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record


@dataclass(frozen=True, slots=True)
class LeastBacklog(Record):
    """Counts calls bound or running; blind to how fast the backend is and how long they are."""

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return the number of calls on each backend."""
        del call, turn
        return [float(load.pending) for load in loads]
