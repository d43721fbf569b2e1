"""BackendLoad: what the gateway has given a backend, in sums that never drift."""

from math import inf

from gateway.core.breaker import Breaker, BreakerState
from gateway.core.budget import Budget
from gateway.core.calibration import Calibration, Speed
from gateway.core.call import Call
from gateway.core.cost import unloaded_s
from gateway.core.events import Finished
from gateway.core.prefix import PrefixTable
from gateway.core.queues import FairShares, ReadyQueue
from gateway.core.types import Backend, BackendId, BackendState

# Names of their own: to read an enum's member costs ten times as much as a global.
_CLOSED = BreakerState.CLOSED


class BackendLoad:
    """One backend as the scheduler sees it. Token sums are integers; seconds reset when idle."""

    __slots__ = (
        "_own_tokens",
        "assigned_s",
        "backend",
        "backlog_s",
        "bound",
        "breaker",
        "budget",
        "calibration",
        "context_tokens",
        "heard_at",
        "id",
        "pending_prefill_tokens",
        "prefix",
        "profile",
        "running",
        "score_terms",
        "state",
        "was_silent",
    )

    def __init__(
        self,
        backend: Backend,
        state: BackendState = BackendState.UP,
        shares: FairShares | None = None,
    ) -> None:
        self.id: BackendId = backend.id
        self.backend = backend
        self.calibration = Calibration(backend.profile)
        self.profile = backend.profile
        """What its engine does: as configured, corrected by what was seen of it."""
        self.state = state
        self.breaker = Breaker(backend.id)
        """Whether its calls succeed. It is given new ones if this admits and `state` is up."""
        self.budget = Budget()
        """How much of the KV budget it may have: less when calls wait in the engine."""
        self.heard_at = 0.0
        """When a call last gave a sign of life."""
        self.was_silent = False
        """Its breaker was opened because there was none for too long."""
        self.running: dict[str, Call] = {}
        self.bound = ReadyQueue(shares)
        """Calls that a policy binding at arrival put here and that wait for room."""
        self.prefix = PrefixTable(backend.profile.kv_tokens)
        self.pending_prefill_tokens = 0
        """Prompt tokens of running calls whose first token is not out."""
        self.context_tokens = 0
        """Prompt and predicted output of running calls: what attention will read."""
        self._own_tokens = 0
        self.backlog_s = 0.0
        """Predicted unloaded seconds of work bound or running here, less what is done."""
        self.assigned_s = 0.0
        """All the work ever given to it (HexGen-Flow's published code scores by this)."""
        self.score_terms: tuple[float, ...] | None = None
        """What a dispatch policy worked out from this load; None: it has changed since."""

    def configure(self, backend: Backend, state: BackendState) -> None:
        """The backend is configured like this, or in this state, from now on."""
        self.backend = backend
        self.calibration.configure(backend.profile)
        self.profile = self.calibration.profile
        self.score_terms = None
        self.state = state
        self.prefix.capacity_tokens = backend.profile.kv_tokens
        if state is BackendState.DOWN:
            self.prefix.forget()  # who comes back from the dead has an empty cache
            self.budget = Budget()

    @property
    def kv_tokens(self) -> int:
        """The engine's KV cache, in tokens."""
        return self.backend.profile.kv_tokens

    @property
    def in_flight(self) -> int:
        """Calls in the engine."""
        return len(self.running)

    @property
    def pending(self) -> int:
        """Calls in the engine or bound to it."""
        return len(self.running) + len(self.bound)

    @property
    def reserved_tokens(self) -> int:
        """KV tokens that running calls hold or will hold; shared prefixes count once."""
        return self._own_tokens + self.prefix.referenced_tokens

    def fresh_tokens(self, call: Call) -> int:
        """Return the prompt tokens that would have to be computed here (at least 1)."""
        request = call.request
        if not request.prefix:
            return request.prompt_tokens
        return max(request.prompt_tokens - self.prefix.cached_tokens(request.prefix), 1)

    def service_s(self, call: Call) -> float:
        """Return the call's predicted time if it had this backend to itself."""
        return unloaded_s(
            self.profile,
            self.fresh_tokens(call),
            call.request.prompt_tokens,
            call.output_tokens,
        )

    def is_held_back(self) -> bool:
        """Return whether it has all the calls that it may have while it recovers."""
        breaker = self.breaker
        if breaker.state is BreakerState.HALF_OPEN:
            return breaker.trial is not None
        if breaker.ramp >= 1.0:
            return False
        return len(self.running) >= max(int(breaker.ramp * self.profile.max_num_seqs), 1)

    def free_tokens(self, budget_share: float) -> float:
        """Return the KV budget that is left, in tokens: inf while idle, -inf at a hard cap."""
        in_flight = len(self.running)
        if not in_flight:
            return inf
        profile, breaker, cap = self.profile, self.breaker, self.backend.max_in_flight
        if in_flight >= profile.max_num_seqs or (cap is not None and in_flight >= cap):
            return -inf
        if (breaker.ramp < 1.0 or breaker.state is not _CLOSED) and self.is_held_back():
            return -inf
        reserved_tokens = self._own_tokens + self.prefix.referenced_tokens
        return self.budget_tokens(budget_share) - reserved_tokens

    def budget_tokens(self, share: float) -> float:
        """Return the KV tokens that calls may hold where a policy grants this share."""
        return share * self.breaker.ramp * self.budget.share * self.profile.kv_tokens

    def needed_tokens(self, call: Call) -> int:
        """Return the KV tokens that the call would add here."""
        prefix = call.request.prefix
        shared_tokens = self.prefix.unreferenced_tokens(prefix) if prefix else 0
        return call.least_tokens + shared_tokens

    def bind(self, call: Call) -> None:
        """Count a call's work here from now on, whether it waits or runs."""
        call.load = self
        call.backlog_s = self.service_s(call)
        self.backlog_s += call.backlog_s
        self.assigned_s += call.backlog_s

    def unbind(self, call: Call) -> None:
        """Stop counting a call's work here."""
        self.backlog_s -= call.backlog_s
        call.backlog_s = 0.0
        call.load = None
        if not self.running and not self.bound:
            self.backlog_s = 0.0  # forget what rounding left behind

    def start(self, call: Call) -> None:
        """A bound call enters the engine."""
        request = call.request
        self.score_terms = None
        call.fresh_tokens = self.fresh_tokens(call)
        call.context_tokens = call.least_tokens + call.prefix_tokens
        call.own_tokens = call.context_tokens - call.prefix_tokens
        self.pending_prefill_tokens += call.fresh_tokens
        self.context_tokens += call.context_tokens
        self._own_tokens += call.own_tokens
        self.prefix.acquire(request.prefix)
        self.running[request.id] = call
        self.breaker.started(request.id)

    def prefill_done(self, call: Call) -> None:
        """The call's first token is out: its prompt is no longer ahead of others."""
        self.score_terms = None
        self.pending_prefill_tokens -= call.fresh_tokens
        done_s = min(self.profile.prefill_s_per_token * call.fresh_tokens, call.backlog_s)
        call.fresh_tokens = 0
        self._lower_backlog(call, done_s)

    def progress(self, call: Call, remaining_tokens: int, seen_tokens: int) -> None:
        """The call has produced `seen_tokens` and is now expected to need so many more."""
        output_tokens = seen_tokens + remaining_tokens
        change = output_tokens - call.output_tokens
        call.output_tokens = output_tokens
        call.context_tokens += change
        call.own_tokens += change
        self.score_terms = None
        self.context_tokens += change
        self._own_tokens += change
        left_s = unloaded_s(self.profile, 0, call.context_tokens, remaining_tokens)
        self._lower_backlog(call, call.backlog_s - left_s)

    def stop(self, call: Call) -> None:
        """A call leaves the engine, however it ended."""
        del self.running[call.request.id]
        self.score_terms = None
        self.pending_prefill_tokens -= call.fresh_tokens
        self.context_tokens -= call.context_tokens
        self._own_tokens -= call.own_tokens
        self.prefix.release(call.request.prefix)
        self.unbind(call)

    def watch(self, call: Call, now: float) -> None:
        """Learn from the call that has just entered the engine how fast that is."""
        is_crowded = (
            self.reserved_tokens > self.profile.kv_tokens
            or len(self.running) > self.profile.max_num_seqs
        )
        self.calibration.started(call, now, is_crowded=is_crowded)

    def looked(self, waiting: int | None, now: float) -> bool:
        """The engine was looked at; `waiting`: calls in its queue. Return whether room changed.

        Calls that came lately may well wait for others' prompts to be read. Given twice the time
        that should take, and a second, they wait for room.
        """
        expected = sum(_may_be_unread(call, now) for call in self.running.values())
        return self.budget.looked(waiting, expected)

    def recall(self, saved: Speed) -> None:
        """Take over what an earlier process learned of the backend's speed."""
        self.calibration.restore(saved)
        self.profile = self.calibration.profile
        self.score_terms = None

    def learn(self, call: Call, now: float, finished: Finished | None) -> bool:
        """Learn from a call that leaves the engine; return whether `profile` changed."""
        changed = self.calibration.ended(call, now, finished)
        if changed:
            self.profile = self.calibration.profile
            self.score_terms = None
        return changed

    def _lower_backlog(self, call: Call, by_s: float) -> None:
        call.backlog_s -= by_s
        self.backlog_s -= by_s


def load_of(call: Call) -> BackendLoad:
    """Return where a running call is."""
    load = call.load
    assert load is not None, f"running call {call.request.id} has no backend"
    return load


def _may_be_unread(call: Call, now: float) -> bool:
    """Return whether a running call's prompt may still be waiting for its turn to be read."""
    if call.first_token_at is not None or call.started_at is None:
        return False
    return now <= call.started_at + 2 * (call.prefill_ends_at - call.started_at) + 1.0
