"""EngineModel: one engine with continuous batching as in vLLM V1, in virtual time (pure).

Who is in the batch, and what each step computes, is for `Batching` to say; here steps have a
duration, and calls a first and a last token.

A call may reserve room for its answer, as TGI lets all of them; then it is admitted only if that
fits too, whoever else could be.

The step's duration is that of `gateway.core.profiles`; a sequence reads the tokens computed before
the step. Runs of steps in which everybody only decodes are jumped over in closed form, so cost
depends on the number of calls and chunks, not of tokens.
"""

from gateway.core.profiles import GpuProfile
from gateway.sim.batch import NOT_DECODING, Sequence, StepRun
from gateway.sim.batching import Batching
from gateway.sim.engine_calls import EngineCall, EngineEvent, FinishedAt, FirstTokenAt
from gateway.sim.kv_cache import KvCache


class EngineModel:
    """One engine's queue, batch and KV cache.

    Times are seconds on the caller's clock; a method's `now` must not be earlier than any before.
    A step begins when time moves past its start, or when the next event or step is asked for.
    Calls that come later join at the next step boundary.
    """

    def __init__(
        self,
        profile: GpuProfile,
        *,
        priority_scheduling: bool = False,
        prefix_caching: bool = True,
        max_queued: int | None = None,
    ) -> None:
        self.profile = profile
        self.max_queued = max_queued
        """Calls it holds at most, running ones included; beyond that `submit` refuses."""
        self.total_blocks = profile.kv_tokens // profile.block_tokens
        self._priority_scheduling = priority_scheduling
        self._block_tokens = profile.block_tokens
        self._kv = KvCache(self.total_blocks, profile.block_tokens, prefix_caching=prefix_caching)
        self._batch = Batching(profile, self._kv)
        self._arrivals = 0
        self._slowness = 1.0
        self._boundary = 0.0
        """When the last step ended, and the next begins."""
        self._events: list[EngineEvent] = []
        self._empty()

    def _empty(self) -> None:
        self._kv.empty()
        self._batch.empty()
        self._calls: dict[str, Sequence] = {}
        self._run: StepRun | None = None
        """What is under way; None: no step has begun since `_boundary`."""
        self._leaving: list[Sequence] = []
        """Aborted while in the batch: gone at the next boundary."""

    # -- what callers do

    def submit(self, call: EngineCall, now: float) -> bool:
        """Take in a call; False: the engine holds `max_queued` calls already.

        ValueError for a call that could never run: more tokens than the whole KV cache, an id in
        use, nothing to compute or to generate.
        """
        self._run_until(now)
        if self.max_queued is not None and len(self._calls) >= self.max_queued:
            return False
        if call.id in self._calls:
            raise ValueError(f"call '{call.id}' is already in the engine")
        if call.prompt_tokens < 1 or call.output_tokens < 1:
            raise ValueError(f"call '{call.id}' needs at least one prompt and one output token")
        if not self.fits(call.prompt_tokens, max(call.output_tokens, call.reserved_tokens)):
            raise ValueError(f"call '{call.id}' is larger than the KV cache")
        if not self._calls and self._run is None:
            self._boundary = now
        self._arrivals += 1
        urgency = call.priority if self._priority_scheduling else 0
        sequence = Sequence(*call[:4], urgency, self._arrivals)
        if call.reserved_tokens:
            sequence.reach = call.prompt_tokens + call.reserved_tokens - 1
        self._calls[call.id] = sequence
        if self._batch.enqueue(sequence):
            self._cut_short(now)
        return True

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a call of this size can run at all: the last token is never written back."""
        return self._kv.blocks(prompt_tokens + output_tokens - 1) <= self.total_blocks

    def abort(self, call_id: str, now: float) -> bool:
        """Forget a call; no event of it comes any more. Its blocks are free at the next boundary.

        False: there is no such call (any more).
        """
        self._run_until(now)
        sequence = self._calls.pop(call_id, None)
        if sequence is None:
            return False
        sequence.present = False
        if sequence not in self._batch.running:
            if self._batch.dequeue():
                self._cut_short(now)
        elif self._run is not None:
            self._leaving.append(sequence)
            self._cut_short(now)
        else:
            self._batch.leave(sequence)
        return True

    def advance(self, now: float) -> list[EngineEvent]:
        """Return everything that became true up to and including `now`, in order of time."""
        self._run_until(now)
        events = self._events
        if events:
            self._events = []
        return events

    def next_event_at(self) -> float | None:
        """Return an instant before which no event will come; None: the engine is idle.

        It is exact but for a prompt of several chunks, and when KV blocks run out: then `advance`
        may return nothing, and the caller asks again.
        """
        run = self._run or self._begin()
        return None if run is None else run.end

    def next_step_at(self, now: float) -> float | None:
        """Return the first step boundary after `now`, for callers that stream; None: idle."""
        self._run_until(now)
        run = self._run or self._begin()
        return None if run is None else run.after(run.done_by(now) + 1)

    def output_tokens(self, call_id: str, now: float) -> int:
        """Return how many tokens a call in the engine has produced by `now` (KeyError: unknown)."""
        self._run_until(now)
        sequence = self._calls[call_id]
        if sequence.finish_step == NOT_DECODING:
            return sequence.output
        steps = 0 if self._run is None else self._run.done_by(now)
        return self._batch.decoding.steps + steps + sequence.offset

    def slow_down(self, factor: float, now: float) -> None:
        """Let steps that begin after `now` take `factor` (> 0) times as long as by the profile."""
        self._run_until(now)
        self._cut_short(now)
        self._slowness = factor

    def crash(self, now: float) -> list[str]:
        """Lose everything, the prefix cache too; return the ids of the calls that were lost."""
        self._run_until(now)
        lost = list(self._calls)
        self._empty()
        return lost

    @property
    def running(self) -> int:
        """Sequences in the batch, as of the last boundary that `advance` reached."""
        return len(self._batch.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait, preempted ones among them."""
        return self._batch.waiting

    @property
    def preemptions(self) -> int:
        """How often a running sequence had to give its blocks away."""
        return self._batch.preemptions

    @property
    def prefix_queries(self) -> int:
        """Tokens looked up in the prefix cache so far."""
        return self._kv.prefix_queries

    @property
    def prefix_hits(self) -> int:
        """Tokens of those that were found."""
        return self._kv.prefix_hits

    @property
    def unused_cache_blocks(self) -> int:
        """Free blocks that still hold a prefix nobody uses, as of the last boundary."""
        return self._kv.unused_blocks

    def kv_used_tokens(self, now: float) -> int:
        """Return the tokens of KV cache in use, in whole blocks, shared prefixes once."""
        self._run_until(now)
        used = self._kv.used_blocks
        if self._run is not None and self._run.is_decode:
            used += self._batch.decoding.blocks_needed(self._run.done_by(now) + 1)
        return used * self._block_tokens

    def kv_reserved_tokens(self, now: float) -> int:
        """Return those tokens and the ones that calls in the batch have reserved beyond.

        What is promised is counted where the run began: since then, use has grown into it.
        """
        used_tokens = self.kv_used_tokens(now)
        began_with = self._kv.used_blocks + self._batch.promised_blocks()
        if self._run is not None and self._run.is_decode:
            began_with += self._batch.decoding.blocks_needed(1)
        return max(used_tokens, began_with * self._block_tokens)

    def kv_usage(self, now: float) -> float:
        """Return the share of the KV cache in use, 0 to 1."""
        return self.kv_used_tokens(now) / (self.total_blocks * self._block_tokens)

    # -- time

    def _run_until(self, now: float) -> None:
        while True:
            run = self._run
            if run is None:
                if self._boundary >= now:
                    return
                run = self._begin()
            if run is None or run.end > now:
                return
            self._complete(run)

    def _cut_short(self, now: float) -> None:
        if self._run is not None:
            self._run.cut_short(now)

    # -- a step, or a run of steps

    def _begin(self) -> StepRun | None:
        """Begin the step at `_boundary`, or a run of steps; None: there is nothing to do."""
        if not self._calls:
            return None
        batch = self._batch
        decoding = batch.decoding
        tokens, kv_tokens, new_blocks, preempts = batch.begin_step(self._boundary)
        profile = self.profile
        first_s = self._slowness * (
            profile.step_overhead_s
            + max(profile.decode_base_s, profile.prefill_s_per_token * (decoding.size + tokens))
            + profile.kv_read_s_per_token * (decoding.kv_tokens + kv_tokens)
        )
        if batch.chunks or preempts:
            self._run = StepRun(self._boundary, 1, first_s, 0.0, is_decode=False)
        else:
            # A run of steps takes its blocks when it is complete: it may yet be cut short.
            self._kv.used_blocks -= new_blocks
            growth_s = self._slowness * profile.kv_read_s_per_token * decoding.size
            steps = batch.steps_to_decode()
            self._run = StepRun(self._boundary, steps, first_s, growth_s, is_decode=True)
        return self._run

    def _complete(self, run: StepRun) -> None:
        batch = self._batch
        decoding = batch.decoding
        if run.is_decode:
            self._kv.take(decoding.blocks_needed(run.steps))
        self._run = None
        self._boundary = run.end
        decoding.move_on(run.steps)
        if self._leaving:
            for sequence in self._leaving:
                batch.leave(sequence)
            self._leaving.clear()
        while (done := decoding.next_done()) is not None:
            self._finish(done)
        if batch.chunks:
            for sequence in batch.prefilled():
                self._first_token(sequence)

    def _first_token(self, sequence: Sequence) -> None:
        """A prefill is complete: it yields a token, and the sequence decodes from now on."""
        sequence.output += 1
        if sequence.output == 1:
            self._events.append(FirstTokenAt(self._boundary, sequence.id))
        if sequence.output == sequence.output_tokens:
            self._finish(sequence)
        else:
            self._batch.decoding.add(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._batch.leave(sequence)
        del self._calls[sequence.id]
        self._events.append(
            FinishedAt(
                self._boundary,
                sequence.id,
                sequence.output_tokens,
                sequence.cached_tokens,
                sequence.preemptions,
                sequence.started_at,
            )
        )
