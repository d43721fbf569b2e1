"""Placement: where calls wait and which backend each is given. One code path for all policies."""

from collections.abc import Iterable, Iterator

from gateway.core.call import Call
from gateway.core.cost import prefill_s, step_s
from gateway.core.fleet import Fleet
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Binding, Policy
from gateway.core.queues import FairShares, ReadyQueue
from gateway.core.types import BackendId, BackendState, Decision

HOPELESS_S = 1e9
"""Added to the order key of a call whose deadline is out of reach, where those run last."""


class Placement:
    """The queues, and the policy that empties them.

    A policy that binds at arrival queues a call on its backend at once; one that binds late lets
    it wait with its model until some backend has room. Methods that may start calls return them,
    already counted on their backends; who asks must then send them.
    """

    def __init__(self, fleet: Fleet, policy: Policy, shares: FairShares) -> None:
        self.policy = policy
        self.queues: dict[str, ReadyQueue] = {}
        """By model: calls that no backend is chosen for yet."""
        self._fleet = fleet
        self._shares = shares
        self._turn = 0

    def add(self, call: Call, now: float) -> list[Call]:
        """Let a ready call wait; return the calls that start now, which may include it."""
        if self.policy.binds is Binding.ARRIVAL:
            load = self._bind(call, now)
            if load is not None:
                return list(self._drain(load, now))
        call.order_key = self._key(call)
        model = call.request.model
        queue = self.queues.get(model)
        if queue is None:
            queue = self.queues[model] = ReadyQueue(self._shares)
        queue.push(call)
        return list(self._dispatch([model], now))

    def room_changed(self, load: BackendLoad, now: float) -> list[Call]:
        """A backend has room, or news that changes its score; return the calls that start now."""
        started = list(self._drain(load, now)) if load.bound else []
        models = [model for model in load.backend.models if self.queues.get(model)]
        if models:
            started += self._dispatch(models, now)
        return started

    def remove(self, call: Call) -> None:
        """A waiting call waits no longer."""
        load = call.load
        if load is None:
            self.queues[call.request.model].remove(call)
            return
        load.bound.remove(call)
        load.unbind(call)

    def unbind(self, load: BackendLoad) -> list[Call]:
        """Take every call that waits for this backend off it; return them, first to go first."""
        calls = load.bound.first(len(load.bound))
        for call in calls:
            load.bound.remove(call)
            load.unbind(call)
        return calls

    def clear(self) -> list[Call]:
        """Take every waiting call out of its queue; return them in order of arrival."""
        calls = [call for load in self._fleet.loads.values() for call in self.unbind(load)]
        for queue in self.queues.values():
            calls.extend(queue)
        self.queues.clear()
        return sorted(calls, key=lambda call: call.sequence)

    def settle(self, call: Call, load: BackendLoad) -> None:
        """Correct what fair queueing charged for a call by the tokens it really produced."""
        queue = self.queues.get(call.request.model)
        if queue is None:
            return
        profile = load.profile
        surplus_tokens = call.tokens_seen - call.request.output.mean_tokens
        surplus_s = surplus_tokens * step_s(profile, 1, call.request.prompt_tokens)
        queue.charge(call, max(surplus_s, -call.charged_s))

    def _key(self, call: Call) -> float:
        return self.policy.order.key(call) + (HOPELESS_S if call.is_hopeless else 0.0)

    def _bind(self, call: Call, now: float) -> BackendLoad | None:
        loads = self._fleet.open_for(call)
        if not loads:
            return None
        scores = self._scores(call, loads)
        load = loads[min(range(len(loads)), key=scores.__getitem__)]
        call.decision = self._decision(call, load, loads, scores, frozenset(), now)
        load.bind(call)
        call.order_key = self._key(call)
        load.bound.push(call)
        return load

    def _drain(self, load: BackendLoad, now: float) -> Iterator[Call]:
        while load.bound and load.state is BackendState.UP:
            call = load.bound.first(1)[0]
            if not self._admits(load, call):
                return
            load.bound.remove(call)
            self._start(call, load, now)
            load.bound.charge(call, call.charged_s)
            yield call

    def _dispatch(self, models: Iterable[str], now: float) -> Iterator[Call]:
        """Start calls that wait with their models wherever there is good room."""
        queues = [(model, q) for model in models if (q := self.queues.get(model))]
        while queues:
            if len(queues) > 1:
                queues.sort(key=lambda item: (item[1].head_key(), item[0]))
            for _, queue in queues:
                call = self._start_one(queue, now)
                if call is not None:
                    yield call
                    break
            else:
                return
            queues = [item for item in queues if item[1]]

    def _start_one(self, queue: ReadyQueue, now: float) -> Call | None:
        """Start the first call of the queue that should go now; return it, if there is one."""
        for call in queue.first(self.policy.skip + 1):
            loads = self._fleet.open_for(call)
            free = [index for index, load in enumerate(loads) if self._admits(load, call)]
            if not free:
                continue
            scores = self._scores(call, loads)
            best = min(free, key=scores.__getitem__)
            if self._should_hold(loads[best], scores[best], min(scores)):
                continue
            load = loads[best]
            full = frozenset(loads[i].id for i in set(range(len(loads))) - set(free))
            call.decision = self._decision(call, load, loads, scores, full, now)
            queue.remove(call)
            load.bind(call)
            self._start(call, load, now)
            queue.charge(call, call.charged_s)
            return call
        return None

    def _should_hold(self, load: BackendLoad, score: float, best_score: float) -> bool:
        """Return whether waiting for the best backend, busy now, beats this free one."""
        limit = self.policy.hold if load.running else self.policy.hold_idle
        return best_score > 0 and score > limit * best_score

    def _scores(self, call: Call, loads: list[BackendLoad]) -> list[float]:
        self._turn += 1
        return self.policy.dispatch.scores(call, loads, self._turn - 1)

    def _admits(self, load: BackendLoad, call: Call) -> bool:
        """Return whether the engine may be given the call now."""
        share = self.policy.budget_share
        if self.policy.binds is Binding.ARRIVAL and (
            share is None or (self.policy.ranks_in_engine and load.backend.priority_scheduling)
        ):
            # The engine keeps the queue, in our order if it can: hand over, up to the hard cap.
            cap = load.backend.max_in_flight
            return cap is None or load.in_flight < cap
        return load.has_room(call, share or 1.0)

    def _start(self, call: Call, load: BackendLoad, now: float) -> None:
        call.charged_s = call.backlog_s
        call.prefill_ends_at = now + prefill_s(
            load.profile, load.pending_prefill_tokens + load.fresh_tokens(call)
        )
        load.start(call)

    def _decision(
        self,
        call: Call,
        load: BackendLoad,
        loads: list[BackendLoad],
        scores: list[float],
        full: frozenset[BackendId],
        now: float,
    ) -> Decision:
        predicted_s = predicted_execution_s(load, call)
        due_s = None if call.budget_s is None else call.ready_at + call.budget_s - now
        if due_s is None and call.deadline_at is not None:
            due_s = call.deadline_at - now
        return Decision(
            request_id=call.request.id,
            backend_id=load.id,
            decided_at=now,
            policy=self.policy.name,
            scores={other.id: score for other, score in zip(loads, scores, strict=True)},
            full=full,
            order_key=call.order_key,
            queue_s=now - call.came_at,
            predicted_s=predicted_s,
            budget_s=call.budget_s,
            laxity_s=None if due_s is None else due_s - predicted_s,
            output_tokens_p50=call.request.output.quantile(0.5),
            output_tokens_p90=call.request.output.quantile(0.9),
        )


def predicted_execution_s(load: BackendLoad, call: Call) -> float:
    """Return how long the call would run on a backend at its present load."""
    profile = load.profile
    context_tokens = load.context_tokens + call.request.prompt_tokens
    step = step_s(profile, load.in_flight + 1, context_tokens)
    ahead_tokens = load.pending_prefill_tokens + load.fresh_tokens(call)
    return prefill_s(profile, ahead_tokens) + max(call.output_tokens - 1, 0) * step
