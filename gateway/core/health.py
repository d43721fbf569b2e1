"""Health: evidence from calls becomes breakers, for the whole fleet.

Only generations count: what an engine says of itself at /health never outweighs calls that fail.
A full engine is no bad one, and a client's mistake is nobody's fault but the client's.

An engine that hangs fails nothing, so it is known by its silence. How long a healthy one may be
silent is known, too: until its next token it reads a prompt, the longest at worst, and makes a
step. Several times that without a word from any call is suspicious, and the backend gets no more;
as much again, and those of its calls of which no client has seen a byte are better off elsewhere.
"""

from math import inf

from gateway.core.breaker import BreakerState, HealthRules
from gateway.core.call import Call
from gateway.core.cost import prefill_s, step_s
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
        self._stuck: list[BackendLoad] = []

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
        is_first = next(iter(load.running.values())).started_at == now
        if is_first or load.breaker.state is BreakerState.HALF_OPEN:
            load.heard_at = now  # it was idle until now, or is given another chance
        self._watch(load, now)

    def heard(self, load: BackendLoad, now: float) -> bool:
        """A call gave a sign of life; return whether that gives the backend room."""
        load.heard_at = now
        if not load.was_silent:
            return False
        load.was_silent = False
        if load.breaker.state is BreakerState.CLOSED:
            return False
        load.breaker.close(now, self.rules)
        self._rest_or_not(load)
        return True

    def succeeded(self, load: BackendLoad, call: Call, now: float) -> None:
        """A call was answered in full."""
        breaker = load.breaker
        self.heard(load, now)
        if breaker.trial == call.request.id:
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

    def left(self, load: BackendLoad, call: Call, now: float) -> None:
        """A call is not there any more, whatever it has told: its permit comes back."""
        if load.breaker.trial == call.request.id:
            load.breaker.trial = None
        if load.running:  # the oldest may be another one now, with less patience
            self._watch(load, now)

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

    def stuck(self) -> list[BackendLoad]:
        """Return, once, the backends whose calls should be tried elsewhere."""
        stuck, self._stuck = self._stuck, []
        return stuck

    def next_at(self, *, waits: bool) -> float | None:
        """Return when time alone will change something; `waits`: for a call that waits, too."""
        at = self._silence_at if waits or self.rules.stall_s is not None else inf
        if waits:
            for load in self._restless:
                at = min(at, load.breaker.next_at(self.rules) or inf)
        return None if at == inf else at

    def _watch(self, load: BackendLoad, now: float) -> None:
        """Look at the backend no later than it may have been silent for too long."""
        rules = self.rules
        at = load.heard_at + min(rules.silence_s, rules.stall_s or inf)
        if at < self._silence_at:
            # That was quickly said; when it is not so, ask exactly.
            self._silence_at = at if at > now else max(self._overdue_at(load), now)

    def _find_silent(self, now: float) -> list[BackendLoad]:
        silent = []
        self._silence_at = inf
        for load in self._fleet.loads.values():
            if not load.running:
                continue
            if self._overdue_at(load) <= now:
                load.heard_at = now
                # One that is half open is as silent as before; only its trial's silence is news.
                if (load.breaker.state is BreakerState.CLOSED or load.breaker.trial) and (
                    self._open(load, now)
                ):
                    silent.append(load)
                if load.was_silent and (_streams(load) or load.state is BackendState.DOWN):
                    self._stuck.append(load)
                load.was_silent = True
            self._silence_at = min(self._silence_at, self._overdue_at(load))
        return silent

    def _overdue_at(self, load: BackendLoad) -> float:
        rules, least_s = self.rules, self.rules.silence_s
        if rules.stall_s is not None and _streams(load):
            return load.heard_at + max(rules.stall_s, rules.silence_factor * _next_token_s(load))
        if rules.stall_s is not None and load.state is BackendState.DOWN:
            least_s = rules.stall_s  # its probes say the same
        oldest = next(iter(load.running.values()))
        predicted_s = oldest.decision.predicted_s if oldest.decision else 0.0
        return load.heard_at + max(least_s, rules.silence_factor * predicted_s)

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


def _streams(load: BackendLoad) -> bool:
    """Return whether some call there tells of its tokens."""
    return any(call.request.reports_first_token for call in load.running.values())


def _next_token_s(load: BackendLoad) -> float:
    """Return how long the next token of any call may take a healthy engine."""
    profile = load.profile
    unread = [
        call.request.prompt_tokens for call in load.running.values() if call.first_token_at is None
    ]
    step = step_s(profile, len(load.running), load.context_tokens)
    if not unread:
        return step
    # One prompt after the other: how many more there are does not delay the first.
    return step + prefill_s(profile, max(max(unread), min(sum(unread), profile.max_batched_tokens)))
