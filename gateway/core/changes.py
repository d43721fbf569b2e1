"""Changes: what becomes of calls when backends, rules or the time change."""

from gateway.core.admission import QueueLimits
from gateway.core.call import CallState
from gateway.core.commands import Command, Recall
from gateway.core.events import Reconfigured
from gateway.core.ledger import Ledger
from gateway.core.load import BackendLoad
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.policies.base import Policy
from gateway.core.queues import FairShares
from gateway.core.stages import WorkflowEvent
from gateway.core.types import Backend, BackendId, BackendState
from gateway.core.waits import WAITING


class Changes:
    """Carries changes out on the ledger; like it, owned by the scheduler."""

    def __init__(self, ledger: Ledger, shares: FairShares) -> None:
        self._ledger = ledger
        self._shares = shares
        self._fleet = ledger.fleet
        self._placement = ledger.placement
        self._health = ledger.health
        self._retries = ledger.retries

    def change_backend(
        self, backend: Backend, state: BackendState, now: float, out: list[Command]
    ) -> None:
        """A backend is new, or another one than before, or in this state from now on."""
        before = self._fleet.loads.get(backend.id)
        was_down = before is None or before.state is BackendState.DOWN
        load = self._fleet.change(backend, state)
        # At start everybody comes up, and nobody has calls that could come in a herd.
        if was_down and state is BackendState.UP and self._ledger.arrivals:
            self._health.came_up(load, now)
        self._ledger.displace(load, now, out)
        self._ledger.room_changed(load, now, out)

    def remove_backend(self, backend_id: BackendId, now: float, out: list[Command]) -> None:
        """A backend gets nothing any more; what runs there may end."""
        load = self._fleet.remove(backend_id)
        if load is not None:
            self._ledger.displace(load, now, out)

    def trust(self, backend_id: BackendId, now: float, out: list[Command]) -> None:
        """An operator says that a backend is well."""
        load = self._fleet.loads.get(backend_id)
        if load is not None:
            self._health.reset(load)
            self._ledger.room_changed(load, now, out)

    def look_at_engine(
        self, backend_id: BackendId, waiting: int | None, now: float, out: list[Command]
    ) -> None:
        """An engine says how many calls wait in it, or does not say."""
        load = self._fleet.loads.get(backend_id)
        if load is not None and load.looked(waiting, now):
            self._ledger.room_changed(load, now, out)

    def change_policy(self, policy: Policy, now: float, out: list[Command]) -> None:
        """Decide by this policy; what is queued is ordered anew."""
        waiting = self._placement.clear()
        self._placement.policy = policy
        self._ledger.send(self._placement.add(waiting, now), now, out)

    def reconfigure(self, event: Reconfigured, now: float, out: list[Command]) -> None:
        """Rules of the configuration are others."""
        if event.weights is not None:
            self._shares.change(event.weights)
        if event.health is not None:
            self._health.change(event.health)
            self.look_at_health(now, out)  # what was to come later may be due by these
        if event.retries is not None:
            self._retries.rules = event.retries
        if event.workflows is not None:
            self._ledger.workflows.specs = dict(event.workflows)
            self._ledger.workflows.default_deadline_s = event.default_deadline_s
        if event.limits is not None:
            self._limit(event.limits, now, out)

    def _limit(self, limits: QueueLimits, now: float, out: list[Command]) -> None:
        self._ledger.admission.limits = limits
        self._placement.max_bound = limits.max_backend_requests
        self.look_at_the_clock(now, out)
        # Who has waited least loses least.
        for call in self._ledger.waits.latest_first():
            if not self._ledger.admission.total.exceeds(limits, 1.0, 0, further=0):
                break
            if call.state in WAITING:  # it may have gone with another one
                self._ledger.end_wait(call, Outcome.EVICTED, RejectReason.QUEUE_FULL, now, out)

    def look_at_the_clock(self, now: float, out: list[Command]) -> None:
        """Turn away who has waited too long, close workflows that were idle for too long."""
        for call in self._ledger.waits.due(self._ledger.admission.limits.timeout_s, now):
            self._ledger.end_wait(call, Outcome.EVICTED, RejectReason.QUEUE_TIMEOUT, now, out)
        for run in self._ledger.workflows.idle(now):
            self._ledger.close(run, WorkflowEvent.WENT_IDLE, now, out)

    def look_at_health(self, now: float, out: list[Command]) -> None:
        """Do what time has brought for backends, and for calls that wait to be tried again."""
        for load in self._health.look(now):
            if load.breaker.is_open:
                self._ledger.displace(load, now, out)
            # Whoever was held back for one that is kept out now may go elsewhere.
            self._ledger.room_changed(load, now, out)
        for load in self._health.stuck():
            out += self._recalls(load)
        for call in self._retries.due(now):
            call.state = CallState.QUEUED
            self._ledger.send(self._placement.add([call], now), now, out)

    def _recalls(self, load: BackendLoad) -> list[Command]:
        """Ask back the calls of a backend that hangs, where another one could have them."""
        recalls: list[Command] = []
        for call in load.running.values():
            if call.first_token_at is not None or call.is_recalled:
                continue
            elsewhere = [
                other
                for other in self._fleet.open_for(call)
                if other is not load and other.breaker.admits and other.id not in call.tried
            ]
            if elsewhere and self._retries.may(call):
                call.is_recalled = True
                recalls.append(Recall(call.request.id, load.id))
        return recalls
