"""ReadyQueue: calls that wait, most urgent first, tenants in fair shares."""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from gateway.core.call import Call

FlowKey = tuple[str, str]
Entry = tuple[int, float, int, Call]
"""The client's priority within its flow, the policy's key, the arrival number, the call."""

MAX_IDLE_FLOWS = 10_000


class _Flow:
    """One tenant's (sub)queue and what it has been served."""

    __slots__ = ("heap", "key", "served_s", "size")

    def __init__(self, key: FlowKey) -> None:
        self.key = key
        self.heap: list[Entry] = []
        self.size = 0
        self.served_s = 0.0
        """Service charged to it, divided by its weight: its virtual time."""


class FairShares:
    """Weighted fair queueing over flows, by predicted service seconds.

    A flow's virtual time grows by what it is served over its weight; the flow with the least goes
    first (start-time fair queueing: a flow that was idle starts at the present virtual time, so
    idleness is not saved up). A tenant's flows share its weight equally while they wait.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights = dict(weights or {})

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight; 1 unless configured."""
        return self.weights.get(tenant, 1.0)


class ReadyQueue:
    """A priority queue of calls, fair between flows.

    Removal is a mark on the call's entry, so it costs O(1); marked entries are dropped when they
    come up, or all at once when they outnumber the live ones.
    """

    __slots__ = ("_entries", "_flows", "_removed", "_shares", "_virtual_s")

    def __init__(self, shares: FairShares | None = None) -> None:
        self._shares = shares or FairShares()
        self._flows: dict[FlowKey, _Flow] = {}
        self._entries: dict[str, Entry] = {}
        self._removed = 0
        self._virtual_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Call]:
        """Every waiting call, in no particular order."""
        return (entry[3] for entry in self._entries.values())

    def push(self, call: Call) -> None:
        """Add a call by its `order_key`; its id must not be waiting here."""
        request = call.request
        entry = (request.priority, call.order_key, call.sequence, call)
        self._entries[request.id] = entry
        flow = self._flow((request.tenant, request.flow))
        if flow.size == 0:
            flow.served_s = max(flow.served_s, self._virtual_s)
        flow.size += 1
        heappush(flow.heap, entry)

    def remove(self, call: Call) -> None:
        """Take a call out, wherever it stands."""
        del self._entries[call.request.id]
        flow = self._flows[call.request.tenant, call.request.flow]
        flow.size -= 1
        self._removed += 1
        if self._removed > len(self._entries) + 64:
            self._sweep()

    def first(self, count: int) -> list[Call]:
        """Return the calls that should go next, at most `count`, in order."""
        active = [flow for flow in self._flows.values() if flow.size]
        if not active:
            return []
        if len(active) == 1:
            return self._head(active[0], count)
        active.sort(key=lambda flow: (flow.served_s, flow.key))
        calls: list[Call] = []
        for flow in active:
            calls += self._head(flow, count - len(calls))
            if len(calls) >= count:
                break
        return calls

    def head_key(self) -> tuple[float, int]:
        """Return the order key and arrival number of the call that goes next; it must exist."""
        call = self.first(1)[0]
        return call.order_key, call.sequence

    def charge(self, call: Call, service_s: float) -> None:
        """Count service (or, when negative, give back what was not used) to a call's flow."""
        key = (call.request.tenant, call.request.flow)
        flow = self._flow(key)
        if len(self._flows) == 1:
            flow.served_s = self._virtual_s = max(flow.served_s + service_s, self._virtual_s)
            return
        tenant_flows = sum(1 for k, f in self._flows.items() if k[0] == key[0] and f.size) or 1
        flow.served_s += service_s * tenant_flows / self._shares.weight(key[0])
        waiting = [f.served_s for f in self._flows.values() if f.size]
        if waiting:
            self._virtual_s = max(self._virtual_s, min(waiting))
        elif not self._entries:
            self._virtual_s = max(self._virtual_s, flow.served_s)

    def _flow(self, key: FlowKey) -> _Flow:
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= MAX_IDLE_FLOWS:
                self._forget_idle()
            flow = self._flows[key] = _Flow(key)
        return flow

    def _head(self, flow: _Flow, count: int) -> list[Call]:
        heap = flow.heap
        live: list[Entry] = []
        while heap and len(live) < count:
            entry = heappop(heap)
            if self._entries.get(entry[3].request.id) is entry:
                live.append(entry)
            else:
                self._removed -= 1
        for entry in live:
            heappush(heap, entry)
        return [entry[3] for entry in live]

    def _sweep(self) -> None:
        for flow in self._flows.values():
            flow.heap = [e for e in flow.heap if self._entries.get(e[3].request.id) is e]
            flow.heap.sort()
        self._removed = 0

    def _forget_idle(self) -> None:
        idle = [key for key, flow in self._flows.items() if not flow.size]
        for key in idle:
            if self._flows[key].served_s <= self._virtual_s:
                del self._flows[key]
