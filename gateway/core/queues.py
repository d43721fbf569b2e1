"""ReadyQueue: calls that wait, most urgent first, tenants in fair shares."""

from bisect import insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, nsmallest
from typing import Generic, NamedTuple, TypeVar

from gateway.core.call import Call

MAX_IDLE_SHARES = 10_000
MAX_FRONT = 32
"""Calls at the head of a flow that are kept in order."""
SLACK = 64
"""Dead heap entries are dropped when they outnumber the live ones by this."""


class Entry(NamedTuple):
    """A waiting call's place in its flow. It is the call's own only while it is the very object
    that the queue has under the call's id: a named tuple, as compiled code copies plain ones."""

    priority: int
    """The client's, within its flow."""
    order_key: float
    """The policy's."""
    sequence: int
    call: Call


class FairShares:
    """Weighted fair queueing, by predicted service seconds.

    A tenant's virtual time grows by what it is served over its weight; the tenant with the least
    goes first (start-time fair queueing: one that was idle starts at the present virtual time, so
    idleness is not saved up). Within a tenant its flows share in the same way, equally.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: dict[str, float] = {}
        self.change(weights or {})

    def change(self, weights: Mapping[str, float]) -> None:
        """From now on tenants have these weights; what they were served stays."""
        for tenant, weight in weights.items():
            if not weight > 0:
                raise ValueError(f"the weight of tenant '{tenant}' must be > 0, not {weight}")
        self.weights = dict(weights)

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight; 1 unless configured."""
        return self.weights.get(tenant, 1.0)


class _Turn(NamedTuple):
    """A share's place in the order of turns; dead once it is not the share's own any more."""

    served_s: float
    key: str


class _Share:
    """Whoever takes turns: how many calls of it wait and what it has been served."""

    __slots__ = ("key", "served_s", "size", "turn")

    def __init__(self, key: str) -> None:
        self.key = key
        self.size = 0
        self.served_s = 0.0
        self.turn: _Turn | None = None
        """Its place in the order of turns; None while nothing of it waits."""


class _Flow(_Share):
    """The calls of one flow: the first few in order, the rest behind them as a heap.

    The first few are asked for after every event, and hardly change. Removed calls are dropped
    from the heap when they come up.
    """

    __slots__ = ("front", "heap")

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.front: list[Entry] = []
        """None of the heap goes before these; not one of them is removed."""
        self.heap: list[Entry] = []


class _Tenant(_Share):
    """The flows of one tenant."""

    __slots__ = ("flows",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.flows = _Turns(_Flow)


_S = TypeVar("_S", bound=_Share)


class _Turns(Generic[_S]):
    """Shares by key, and those with waiting calls by what they have been served."""

    __slots__ = ("_heap", "_limit", "_make", "_virtual_s", "_waiting", "shares")

    def __init__(self, make: type[_S]) -> None:
        self.shares: dict[str, _S] = {}
        self._make = make
        self._heap: list[_Turn] = []
        self._waiting = 0
        self._virtual_s = 0.0
        self._limit = MAX_IDLE_SHARES

    def share(self, key: str) -> _S:
        """Return the share of that key, new if need be."""
        share = self.shares.get(key)
        if share is None:
            if len(self.shares) >= self._limit:
                self._forget_idle()
            share = self.shares[key] = self._make(key)
        return share

    def push(self, share: _S) -> None:
        """One more call of it waits."""
        share.size += 1
        if share.size == 1:
            self._waiting += 1
            share.served_s = max(share.served_s, self._virtual_s)
            self._enter(share)

    def drop(self, share: _S) -> None:
        """One call of it less waits."""
        share.size -= 1
        if not share.size:
            self._waiting -= 1
            share.turn = None

    def serve(self, share: _S, service_s: float) -> None:
        """Count service; the virtual time is that of the share whose turn is next."""
        share.served_s += service_s
        if share.size:
            self._enter(share)
        first = self._first()
        now_s = share.served_s if first is None else first.served_s
        self._virtual_s = max(self._virtual_s, now_s)

    def first(self, count: int) -> list[_S]:
        """Return at most `count` shares with waiting calls, least served first."""
        if self._waiting <= 1 or count <= 1:
            first = self._first()
            return [] if first is None else [first]
        shares: list[_S] = []
        turns: list[_Turn] = []
        while len(shares) < count and (share := self._first()) is not None:
            shares.append(share)
            turns.append(heappop(self._heap))
        for turn in turns:
            heappush(self._heap, turn)
        return shares

    def _enter(self, share: _S) -> None:
        turn = share.turn = _Turn(share.served_s, share.key)
        heappush(self._heap, turn)
        if len(self._heap) > 2 * self._waiting + SLACK:
            self._heap = [turn for turn in self._heap if self.shares[turn.key].turn is turn]
            heapify(self._heap)

    def _first(self) -> _S | None:
        heap = self._heap
        while heap:
            turn = heap[0]
            share = self.shares[turn.key]
            if share.turn is turn:
                return share
            heappop(heap)
        return None

    def _forget_idle(self) -> None:
        self._heap = sorted(turn for turn in self._heap if self.shares[turn.key].turn is turn)
        self.shares = {key: share for key, share in self.shares.items() if share.size}
        self._limit = max(MAX_IDLE_SHARES, 2 * len(self.shares))


class ReadyQueue:
    """A priority queue of calls, fair between tenants, and between the flows of each.

    Removal is a mark on the call's entry, so it costs O(1); marked entries are dropped when they
    come up, or all at once when they outnumber the live ones.
    """

    __slots__ = ("_entries", "_removed", "_shares", "_tenants")

    def __init__(self, shares: FairShares | None = None) -> None:
        self._shares = shares or FairShares()
        self._tenants = _Turns(_Tenant)
        self._entries: dict[str, Entry] = {}
        self._removed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, call: Call) -> bool:
        entry = self._entries.get(call.request.id)
        return entry is not None and entry.call is call

    def __iter__(self) -> Iterator[Call]:
        """Every waiting call, in no particular order."""
        return (entry.call for entry in self._entries.values())

    def push(self, call: Call) -> None:
        """Add a call by its `order_key`; its id must not be waiting here."""
        request = call.request
        entry = Entry(request.priority, call.order_key, call.sequence, call)
        self._entries[request.id] = entry
        tenant, flow = self._shares_of(call)
        self._tenants.push(tenant)
        tenant.flows.push(flow)
        if flow.front and entry < flow.front[-1]:
            insort(flow.front, entry)
            if len(flow.front) > MAX_FRONT:
                heappush(flow.heap, flow.front.pop())
        else:
            heappush(flow.heap, entry)

    def remove(self, call: Call) -> None:
        """Take a call out, wherever it stands."""
        entry = self._entries.pop(call.request.id)
        tenant, flow = self._shares_of(call)
        self._tenants.drop(tenant)
        tenant.flows.drop(flow)
        if flow.front and entry <= flow.front[-1]:
            flow.front.remove(entry)
        else:
            self._removed += 1
        if not flow.size:
            self._removed -= len(flow.heap)  # all of them are marked
            flow.heap.clear()
        if self._removed > len(self._entries) + SLACK:
            self._sweep()

    def first(self, count: int) -> list[Call]:
        """Return the calls that should go next, at most `count`, in order."""
        calls: list[Call] = []
        for tenant in self._tenants.first(count):
            for flow in tenant.flows.first(count - len(calls)):
                calls += self._head(flow, count - len(calls))
                if len(calls) >= count:
                    return calls
        return calls

    def head_key(self) -> tuple[float, int]:
        """Return the order key and arrival number of the call that goes next; it must exist."""
        call = self.first(1)[0]
        return call.order_key, call.sequence

    def charge(self, call: Call, service_s: float) -> None:
        """Count service (or, when negative, give back what was not used) to a call's tenant."""
        tenant, flow = self._shares_of(call)
        self._tenants.serve(tenant, service_s / self._shares.weight(tenant.key))
        tenant.flows.serve(flow, service_s)

    def _shares_of(self, call: Call) -> tuple[_Tenant, _Flow]:
        tenant = self._tenants.share(call.request.tenant)
        return tenant, tenant.flows.share(call.request.flow)

    def _head(self, flow: _Flow, count: int) -> list[Call]:
        heap, front, entries = flow.heap, flow.front, self._entries
        while heap and len(front) < min(count, MAX_FRONT):
            entry = heappop(heap)
            if entries.get(entry.call.request.id) is entry:
                front.append(entry)
            else:
                self._removed -= 1
        first = front[:count]
        if count > len(first) and heap:
            live = (e for e in heap if entries.get(e.call.request.id) is e)
            first += nsmallest(count - len(first), live)
        return [entry.call for entry in first]

    def _sweep(self) -> None:
        for tenant in self._tenants.shares.values():
            for flow in tenant.flows.shares.values():
                flow.heap = [e for e in flow.heap if self._entries.get(e.call.request.id) is e]
                flow.heap.sort()
        self._removed = 0
