"""Placement: where calls wait and which backend each is given. One code path for all policies."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from gateway.core.call import Call
from gateway.core.cost import prefill_s, step_s
from gateway.core.decisions import decision
from gateway.core.fleet import Fleet, Pool, untried
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Binding, Policy
from gateway.core.queues import FairShares, ReadyQueue
from gateway.core.types import BackendState

HOPELESS_S = 1e9
"""Added to the order key of a call whose deadline is out of reach, where those run last."""

# Names of their own: to read an enum's member costs ten times as much as a global.
_UP = BackendState.UP
_ARRIVAL = Binding.ARRIVAL
_LATE = Binding.LATE


class Placement:
    """The queues, and the policy that empties them.

    A policy that binds at arrival queues a call on its backend at once; one that binds late lets
    it wait with its model until some backend has room. Methods that may start calls return them,
    already counted on their backends; who asks must then send them.
    """

    def __init__(self, fleet: Fleet, policy: Policy, shares: FairShares) -> None:
        self.policy = policy
        self.max_bound: float = inf
        """Calls that may wait for one backend, where the policy binds at arrival."""
        self.queues: dict[Pool, ReadyQueue] = {}
        """Calls that no backend is chosen for yet."""
        self._fleet = fleet
        self._shares = shares
        self._overdue: list[Call] = []
        """Waiting calls that have been passed too often, in the order in which they became so."""
        self._gaps: dict[Pool | BackendLoad, None] = {}
        """Queues that a call has left without starting: who was behind it may go now."""

    def add(self, calls: Iterable[Call], now: float) -> list[Call]:
        """Let ready calls wait; return the calls that start now."""
        places: dict[Pool | BackendLoad, None] = {}
        for call in calls:
            pool = self._fleet.pool(call.request)
            if self.policy.binds is _ARRIVAL and (loads := untried(call, pool, pool.open())):
                if self.max_bound < inf:
                    loads = tuple(one for one in loads if len(one.bound) < self.max_bound) or loads
                places[self._bind(call, pool, loads, now)] = None
            else:
                self._queue(call, pool)
                if call in self.queues[pool].first(self.policy.skip + 1):
                    places[pool] = None  # behind that, nothing has changed for anybody
        return self._fill(places, now)

    def is_full(self, pool: Pool) -> bool:
        """Return whether as many calls as may wait for a backend do so at each of the pool."""
        return self.policy.binds is _ARRIVAL and all(
            len(load.bound) >= self.max_bound for load in pool.open()
        )

    def may_start(self, call: Call) -> bool:
        """Return whether some backend has room for the call now, if it is its turn."""
        loads = self._fleet.open_for(call)
        rooms = self._rooms(loads)
        return any(
            load.needed_tokens(call) <= room and not load.bound
            for load, room in zip(loads, rooms, strict=True)
        )

    def room_changed(self, load: BackendLoad, now: float) -> list[Call]:
        """A backend has room, or news that changes its score; return the calls that start now."""
        places: dict[Pool | BackendLoad, None] = {load: None} if load.bound else {}
        for pool, queue in self.queues.items():
            if queue and load in pool.loads:
                places[pool] = None
        return self._fill(places, now) if places else []

    def fill_gaps(self, now: float) -> list[Call]:
        """Return the calls that start now because those before them have left the queue."""
        if not self._gaps:
            return []
        places, self._gaps = self._gaps, {}
        return self._fill(places, now)

    def remove(self, call: Call) -> None:
        """A waiting call waits no longer."""
        if call.load is not None:
            self._gaps[call.load] = None
        elif call in self._overdue:
            self._gaps.update(dict.fromkeys(self.queues))  # its backends are free for all again
        else:
            self._gaps[self._fleet.pool(call.request)] = None
        self._take(call)

    def displaced(self, load: BackendLoad) -> list[Call]:
        """Take out the calls that wait in the wrong place since this backend changed.

        They are those bound to it when it may not have them any more, those of pools that are no
        more, and, under a policy that binds at arrival, those that nothing was up for.
        """
        calls = [
            call
            for call in load.bound.first(len(load.bound))
            if load.state is not _UP
            or load.breaker.is_open
            or load not in self._fleet.pool(call.request).loads
        ]
        for pool, queue in self.queues.items():
            if self.policy.binds is _ARRIVAL or not self._fleet.is_current(pool):
                calls += queue.first(len(queue))
        for call in calls:
            self._take(call)
        self.queues = {pool: q for pool, q in self.queues.items() if self._fleet.is_current(pool)}
        return calls

    def clear(self) -> list[Call]:
        """Take every waiting call out of its queue; return them in order of arrival."""
        calls = [call for load in self._fleet.loads.values() for call in load.bound]
        calls += [call for queue in self.queues.values() for call in queue]
        for call in calls:
            self._take(call)
        return sorted(calls, key=lambda call: call.sequence)

    def settle(self, call: Call, load: BackendLoad) -> None:
        """Correct what fair queueing charged for a call by the tokens it really produced."""
        queue = load.bound
        if self.policy.binds is _LATE:
            found = self.queues.get(self._fleet.pool(call.request))
            if found is None:
                return
            queue = found
        profile = load.profile
        surplus_tokens = call.tokens_seen - call.request.output.mean_tokens
        surplus_s = surplus_tokens * step_s(profile, 1, call.request.prompt_tokens)
        queue.charge(call, max(surplus_s, -call.charged_s))

    def _queue(self, call: Call, pool: Pool) -> None:
        call.order_key = self._key(call)
        queue = self.queues.get(pool)
        if queue is None:
            queue = self.queues[pool] = ReadyQueue(self._shares)
        queue.push(call)
        if call.passed >= self.policy.max_passed:
            self._overdue.append(call)

    def _take(self, call: Call) -> None:
        load = call.load
        if load is not None:
            load.bound.remove(call)
            load.unbind(call)
            return
        next(q for q in self.queues.values() if call in q).remove(call)
        if self._overdue and call in self._overdue:
            self._overdue.remove(call)

    def _fill(self, places: Collection[Pool | BackendLoad], now: float) -> list[Call]:
        pools = [place for place in places if isinstance(place, Pool)]
        loads = [place for place in places if isinstance(place, BackendLoad)]
        started = [call for load in loads for call in self._drain(load, now)]
        return started + list(self._dispatch(pools, now))

    def _key(self, call: Call) -> float:
        return self.policy.order.key(call) + (HOPELESS_S if call.is_hopeless else 0.0)

    def _bind(
        self, call: Call, pool: Pool, loads: Sequence[BackendLoad], now: float
    ) -> BackendLoad:
        scores = self._scores(call, pool, loads)
        load = loads[min(range(len(loads)), key=scores.__getitem__)]
        load.bind(call)
        call.order_key = self._key(call)
        call.decision = decision(self.policy, call, load, loads, scores, frozenset(), now)
        load.bound.push(call)
        return load

    def _drain(self, load: BackendLoad, now: float) -> Iterator[Call]:
        while load.bound and load.state is _UP:
            call = load.bound.first(1)[0]
            if load.needed_tokens(call) > self._rooms([load])[0]:
                return
            load.bound.remove(call)
            assert call.decision is not None
            call.decision = replace(call.decision, queue_s=now - call.came_at)
            self._start(call, load, now)
            load.bound.charge(call, call.charged_s)
            yield call

    def _dispatch(self, pools: Iterable[Pool], now: float) -> Iterator[Call]:
        """Start calls that wait for a backend of these pools wherever there is good room."""
        queues = [(pool, q) for pool in pools if (q := self.queues.get(pool))]
        while queues:
            if len(queues) > 1:
                queues.sort(key=lambda item: item[1].head_key())
            passed: list[Call] = []
            for pool, queue in queues:
                call = self._start_one(pool, queue, passed, now)
                if call is not None:
                    asked = [pool for pool, _ in queues]
                    for other in (*passed, *self._passed_elsewhere(call, asked)):
                        other.passed += 1
                        if other.passed == self.policy.max_passed:
                            self._overdue.append(other)
                    yield call
                    break
            else:
                return
            queues = [item for item in queues if item[1]]

    def _start_one(
        self, pool: Pool, queue: ReadyQueue, passed: list[Call], now: float
    ) -> Call | None:
        """Start the first call of the queue that should go now; return it, if there is one.

        Those before it that cannot go are added to `passed`.
        """
        open_loads = pool.open()
        open_rooms = self._rooms(open_loads)
        widest = max(open_rooms, default=-inf)
        rival: BackendLoad | None = None
        for call in self._candidates(queue):
            if call.least_tokens > widest:
                passed.append(call)  # no need to ask each backend
                continue
            loads = untried(call, pool, open_loads)
            rooms = open_rooms if loads is open_loads else self._rooms(loads)
            free = self._free(call, loads, rooms)
            if not free or (
                rival is not None
                and loads is open_loads
                and self._is_held_for(rival, call, [loads[index] for index in free])
            ):
                passed.append(call)
                continue
            scores = self._scores(call, pool, loads)
            best = min(free, key=scores.__getitem__)
            best_score = min(scores)
            if self._should_hold(call, loads[best], scores[best], best_score):
                passed.append(call)
                rival = loads[scores.index(best_score)]
                continue
            load = loads[best]
            full = {load.id for load in loads} - {loads[index].id for index in free}
            call.decision = decision(self.policy, call, load, loads, scores, frozenset(full), now)
            self._take(call)
            load.bind(call)
            self._start(call, load, now)
            queue.charge(call, call.charged_s)
            return call
        return None

    def _candidates(self, queue: ReadyQueue) -> list[Call]:
        """Return the calls of a queue that may go now, in order.

        One that a backend has failed waits for others: it does not count among those that may be
        skipped. Overdue ones go first, however urgent those are that came since.
        """
        count = wanted = self.policy.skip + 1
        calls = queue.first(count)
        while len(calls) == count and (failed := sum(bool(call.tried) for call in calls)):
            if count - failed >= wanted:
                break
            count = wanted + failed
            calls = queue.first(count)
        if self._overdue:
            overdue = [call for call in self._overdue if call in queue]
            calls = list(dict.fromkeys(overdue + calls))
        return calls

    def _passed_elsewhere(self, call: Call, asked: list[Pool]) -> Iterator[Call]:
        """More urgent calls, first in queues that were not asked, that wait for the same backend.

        They could not go when they were asked last, and less has become free since.
        """
        if len(self.queues) == 1:
            return
        for pool, queue in self.queues.items():
            if queue and pool not in asked and call.load in pool.loads:
                head = queue.first(1)[0]
                if (head.order_key, head.sequence) < (call.order_key, call.sequence):
                    yield head

    def _kept_from(self, call: Call) -> set[BackendLoad]:
        """Return the backends that this call may not have: overdue calls come first there."""
        kept: set[BackendLoad] = set()
        for other in self._overdue:
            if other is call:
                break
            kept.update(self._fleet.open_for(other))
        return kept

    def _should_hold(self, call: Call, load: BackendLoad, score: float, best_score: float) -> bool:
        """Return whether waiting for the best backend, busy now, beats this free one."""
        if call.passed >= self.policy.max_passed:
            return False
        limit = self.policy.hold if load.running else self.policy.hold_idle
        return best_score > 0 and score > limit * best_score

    def _is_held_for(self, rival: BackendLoad, call: Call, free: Sequence[BackendLoad]) -> bool:
        """Return whether that one backend is reason enough to hold the call.

        Most calls that are held are held for the same backend: then nobody need ask the others.
        """
        *scores, rival_score = self.policy.dispatch.scores(call, [*free, rival], 0)
        score = min(scores)
        return self._should_hold(call, free[scores.index(score)], score, rival_score)

    def _scores(self, call: Call, pool: Pool, loads: Sequence[BackendLoad]) -> list[float]:
        pool.turn += 1
        return self.policy.dispatch.scores(call, loads, pool.turn - 1)

    def _free(self, call: Call, loads: Sequence[BackendLoad], rooms: Sequence[float]) -> list[int]:
        """Return the places in `loads` of the backends that the call may be sent to now."""
        least = call.least_tokens
        free = [index for index, room in enumerate(rooms) if room >= least]
        if call.request.prefix:
            free = [index for index in free if loads[index].needed_tokens(call) <= rooms[index]]
        if self._overdue:
            kept = self._kept_from(call)
            free = [index for index in free if loads[index] not in kept]
        return free

    def _rooms(self, loads: Sequence[BackendLoad]) -> list[float]:
        """Return the KV tokens that each engine may still be given; -inf: no call at all."""
        policy = self.policy
        share = policy.budget_share
        if policy.binds is _LATE and share is not None:
            return [load.free_tokens(share) for load in loads]
        rooms = []
        for load in loads:
            if share is None or (policy.ranks_in_engine and load.backend.priority_scheduling):
                # The engine keeps the queue, in our order if it can: hand over, up to the cap.
                cap = load.backend.max_in_flight
                may = (cap is None or load.in_flight < cap) and not load.is_held_back()
                rooms.append(inf if may else -inf)
            else:
                rooms.append(load.free_tokens(share))
        return rooms

    def _start(self, call: Call, load: BackendLoad, now: float) -> None:
        call.charged_s = call.backlog_s
        call.prefill_ends_at = now + prefill_s(
            load.profile, load.pending_prefill_tokens + load.fresh_tokens(call)
        )
        load.start(call)
