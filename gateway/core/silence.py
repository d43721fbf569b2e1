"""Silence: how long calls should have taken that do not tell when their first token came.

Most clients do not stream, so the engine says nothing between a call's start and its end. What
should have happened in that time is known all the same: the engine read this call's prompt and
those of the calls that came before and during it, in order, and in between it made this call's
tokens, one a step. The two sums, predicted, against what it took teach both constants, each in
proportion to its part: calls differ, so in the long run each finds its own.
"""

from math import inf

from gateway.core.call import Call
from gateway.core.cost import step_s
from gateway.core.profiles import GpuProfile

MIN_STEPS = 8.0
"""A call counts if it should take at least as long as this many decode steps."""


class Account:
    """A call's start, with the backend's running totals at that instant."""

    __slots__ = (
        "chunks",
        "context_token_s",
        "context_tokens",
        "fresh_s",
        "pending_s",
        "started_at",
    )

    def __init__(
        self,
        started_at: float,
        pending_s: float,
        fresh_s: float,
        chunks: int,
        context_tokens: int,
        context_token_s: float,
    ) -> None:
        self.started_at = started_at
        self.pending_s = pending_s
        self.fresh_s = fresh_s
        self.chunks = chunks
        self.context_tokens = context_tokens
        self.context_token_s = context_token_s


class Silence:
    """Keeps the books of one backend's calls, those that stream too."""

    __slots__ = (
        "_accounts",
        "_chunks",
        "_context_token_s",
        "_context_tokens",
        "_counted_at",
        "_crowded_at",
        "_fresh_s",
        "_read_until",
    )

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._read_until = 0.0
        """When all prompts that are here should have been read."""
        self._fresh_s = 0.0
        """Predicted seconds of reading, of all calls so far."""
        self._chunks = 0
        self._context_tokens = 0
        self._context_token_s = 0.0
        self._counted_at = 0.0
        self._crowded_at = -inf

    def started(self, call: Call, now: float, profile: GpuProfile, *, is_crowded: bool) -> None:
        """A call enters the engine."""
        self._count(now)
        reading_s = profile.prefill_s_per_token * call.fresh_tokens
        context_tokens = call.request.prompt_tokens + call.output_tokens // 2
        self._accounts[call.request.id] = Account(
            now,
            max(self._read_until - now, 0.0),
            self._fresh_s,
            self._chunks,
            context_tokens,
            self._context_token_s,
        )
        self._read_until = max(self._read_until, now) + reading_s
        self._fresh_s += reading_s
        self._chunks += -(-call.fresh_tokens // profile.max_batched_tokens)
        self._context_tokens += context_tokens
        if is_crowded:
            self._crowded_at = now

    def ended(self, call: Call, now: float) -> Account | None:
        """A call leaves the engine; return its account."""
        account = self._accounts.pop(call.request.id, None)
        if account is not None:
            self._count(now)
            self._context_tokens -= account.context_tokens
        return account

    def predicted(
        self, account: Account, output_tokens: int, now: float, profile: GpuProfile
    ) -> tuple[float, float] | None:
        """Return seconds that reading and writing should have taken in a call's time until now.

        None: it may have waited in the engine, or was too short to tell.
        """
        span_s = now - account.started_at
        if account.started_at <= self._crowded_at or span_s <= 0:
            return None
        left_s = max(self._read_until - now, 0.0)
        reading_s = account.pending_s + self._fresh_s - account.fresh_s - left_s
        # A step in which a prompt is read makes a token of this call, too, but for its own.
        share = 1 - left_s / (self._fresh_s - account.fresh_s)
        steps = output_tokens - (self._chunks - account.chunks) * max(share, 0.0)
        context_tokens = (self._context_token_s - account.context_token_s) / span_s
        step = step_s(profile, 1, context_tokens)
        writing_s = max(steps, 0.0) * step
        # It began, on average, in the middle of a step: that must not matter.
        return (reading_s, writing_s) if reading_s + writing_s >= MIN_STEPS * step else None

    def _count(self, now: float) -> None:
        self._context_token_s += self._context_tokens * (now - self._counted_at)
        self._counted_at = now
