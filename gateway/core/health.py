"""Health: evidence from calls becomes breakers, for the whole fleet.

Only generations count: what an engine says of itself at /health never outweighs calls that fail.
A full engine is no bad one, and a client's mistake is nobody's fault but the client's.
"""

from math import inf

from gateway.core.breaker import BreakerState, HealthRules
from gateway.core.call import Call
from gateway.core.fleet import Fleet
from gateway.core.load import BackendLoad
from gateway.core.outcomes import FailureKind
from gateway.core.types import BackendState

NO_EVIDENCE = frozenset(
    {FailureKind.OVERLOADED, FailureKind.INVALID_REQUEST, FailureKind.UNSUPPORTED}
)
PERHAPS_THE_CALL = frozenset({FailureKind.SERVER_ERROR, FailureKind.BAD_ANSWER})
"""Evidence against the first backend only: a call that fails everywhere is itself the cause."""


class Health:
    """Watches the fleet's calls. Methods that return loads name those whose room has changed."""

    def __init__(self, fleet: Fleet, rules: HealthRules) -> None:
        self.rules = rules
        self._fleet = fleet
        self._restless: dict[BackendLoad, None] = {}
        """Backends that time alone will change."""
        self._silence_at = inf
        """Before this instant no backend has been silent for too long."""

    def change(self, rules: HealthRules) -> None:
        """From now on these rules hold; `look` finds what is due by them."""
        self.rules = rules
        self._silence_at = -inf

    def came_up(self, load: BackendLoad, now: float) -> None:
        """A backend is here, or here again, while there is work."""
        if load.breaker.state is BreakerState.CLOSED:
            load.breaker.warm_up(now, self.rules)
            self._rest_or_not(load)

    def started(self, load: BackendLoad, now: float) -> None:
        """A call was sent to the backend."""
        if next(iter(load.running.values())).started_at == now:
            load.heard_at = now  # it was idle until now; several may be sent at once
        self._silence_at = min(self._silence_at, self._overdue_at(load))

    def succeeded(self, load: BackendLoad, call: Call, now: float) -> None:
        """A call was answered in full."""
        breaker = load.breaker
        was_on_trial = breaker.trial == call.request.id
        # What was silent and speaks again is well.
        if was_on_trial or (breaker.is_open and load.was_silent):
            load.was_silent = False
            breaker.close(now, self.rules)
            self._rest_or_not(load)
        elif breaker.state is BreakerState.CLOSED:
            breaker.count(True, self.rules)

    def failed(self, load: BackendLoad, call: Call, kind: FailureKind, now: float) -> None:
        """A call broke; it is still counted as running there."""
        breaker = load.breaker
        is_evidence = kind not in NO_EVIDENCE and not (call.tried and kind in PERHAPS_THE_CALL)
        if breaker.trial == call.request.id:
            breaker.trial = None
            if is_evidence:
                self._open(load, now)
        elif is_evidence and breaker.state is BreakerState.CLOSED:
            breaker.count(False, self.rules)
            if breaker.is_bad(self.rules):
                self._open(load, now)

    def left(self, load: BackendLoad, call: Call) -> None:
        """A call is not there any more, whatever it has told: its permit comes back."""
        if load.breaker.trial == call.request.id:
            load.breaker.trial = None
        if load.running:  # the oldest may be another one now, with less patience
            self._silence_at = min(self._silence_at, self._overdue_at(load))

    def reset(self, load: BackendLoad) -> None:
        """An operator says that the backend is well."""
        load.breaker.reset()
        load.was_silent = False
        self._rest_or_not(load)

    def look(self, now: float) -> list[BackendLoad]:
        """Do what time has brought; return the backends that it has changed."""
        changed: list[BackendLoad] = []
        if self._restless:
            changed = [load for load in self._restless if load.breaker.look(now, self.rules)]
            for load in changed:
                self._rest_or_not(load)
        if now >= self._silence_at:
            changed += self._find_silent(now)
        return changed

    def next_at(self) -> float | None:
        """Return when time alone will change what a backend may be given."""
        at = self._silence_at
        for load in self._restless:
            at = min(at, load.breaker.next_at(self.rules) or inf)
        return None if at == inf else at

    def _find_silent(self, now: float) -> list[BackendLoad]:
        silent = []
        self._silence_at = inf
        for load in self._fleet.loads.values():
            if not load.running:
                continue
            if self._overdue_at(load) <= now:
                load.heard_at = now
                if load.breaker.state is not BreakerState.OPEN and self._open(load, now):
                    load.was_silent = True
                    silent.append(load)
            self._silence_at = min(self._silence_at, self._overdue_at(load))
        return silent

    def _overdue_at(self, load: BackendLoad) -> float:
        oldest = next(iter(load.running.values()))
        predicted_s = oldest.decision.predicted_s if oldest.decision else 0.0
        patience_s = max(self.rules.silence_s, self.rules.silence_factor * predicted_s)
        return load.heard_at + patience_s

    def _open(self, load: BackendLoad, now: float) -> bool:
        if load.breaker.state is BreakerState.CLOSED and not self._may_eject(load):
            return False
        load.breaker.open(now, self.rules)
        self._rest_or_not(load)
        return True

    def _may_eject(self, load: BackendLoad) -> bool:
        """Return whether each of its models keeps enough backends without this one."""
        for model in load.backend.models:
            up = [other for other in self._fleet.serving(model) if other.state is BackendState.UP]
            ejected = sum(other.breaker.state is not BreakerState.CLOSED for other in up)
            if ejected + 1 > self.rules.max_ejected_share * len(up):
                return False
        return True

    def _rest_or_not(self, load: BackendLoad) -> None:
        if load.breaker.is_at_rest or self._fleet.loads.get(load.id) is not load:
            self._restless.pop(load, None)
        else:
            self._restless[load] = None
