"""Policy: how calls are placed and ordered. Each part is a frozen dataclass of pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Protocol

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record


class Dispatch(Protocol):
    """Scores backends for a call; the lowest score is best, ties go to the lowest id."""

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return one score a backend. `turn` counts decisions, for policies that take turns."""
        ...


class Order(Protocol):
    """Orders calls that wait; the lowest key goes first.

    Keys do not depend on the present instant: everything urgent grows so at the same rate, so a
    key holds for as long as the call waits.
    """

    def key(self, call: Call) -> float:
        """Return the call's key. `call.backlog_s` is its time on the backend it is bound to."""
        ...


class Binding(StrEnum):
    """When a call is given its backend."""

    ARRIVAL = "arrival"
    LATE = "late"
    """When a backend has room: until then it waits in the gateway, for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Record):
    """A whole scheduling policy."""

    name: str
    dispatch: Dispatch
    order: Order
    binds: Binding
    budget_share: float | None = 1.0
    """Share of a backend's KV that may be promised to calls at once.

    None: calls go to the engine as they come, and wait there. A policy that binds at arrival and
    has an order of its own keeps its queue in the gateway under this budget, unless the engine
    can be told the order (`Backend.priority_scheduling`).
    """
    ranks_in_engine: bool = False
    """Calls carry their order key to engines that take a priority."""
    hold: float = inf
    """Keep a call waiting if its best free backend scores this much worse than the best of all.

    Only for a dispatch that scores each backend by itself, whichever others there are."""
    hold_idle: float = inf
    """The same for a backend that has nothing to do."""
    skip: int = 0
    """How many held calls may be passed over by those behind them."""
    max_passed: int = 200
    """How often a call may be passed. Then it is held no longer, and the backends it could go to
    take no other call that comes after it, until one of them has room for it."""

    def __post_init__(self) -> None:
        if self.binds is Binding.LATE and self.budget_share is None:
            raise ValueError("a policy that binds late needs a budget: calls would never wait")
