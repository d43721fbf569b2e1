"""EngineModel: one engine with continuous batching as in vLLM V1, in virtual time (pure).

Each step: running sequences first (one decode token, or a chunk of prefill), then waiting ones
while the token budget, `max_num_seqs` and KV blocks allow. A waiting sequence never preempts a
running one. When a running sequence cannot get a block, the running sequence that arrived last
(with priority scheduling: the least urgent, ties by arrival) is preempted: freed, put back in its
place among the waiting, recomputed over prompt and output later; that step admits nobody.
A sequence is admitted only if its whole prompt, with what it has generated, fits in free blocks.

A call may reserve room for its answer instead, as TGI lets all of them; then it is admitted only
if that fits too, whoever else could be.

The step's duration is that of `gateway.core.profiles`; a sequence reads the tokens computed before
the step. Runs of steps in which everybody only decodes are jumped over in closed form, so cost
depends on the number of calls and chunks, not of tokens.

A simplification: where vLLM, under priority scheduling, ends a step's work at the first sequence
that preempts itself, here the sequences behind it still get their token.
"""

from bisect import bisect_right
from heapq import heappop, heappush
from typing import NamedTuple

from gateway.core.profiles import GpuProfile
from gateway.core.types import PromptSegment
from gateway.sim.batch import NOT_DECODING, DecodeBatch, Sequence, StepRun
from gateway.sim.prefix_cache import PrefixCache


class EngineCall(NamedTuple):
    """What an engine is asked to do, and how long the answer will turn out."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """The true length, at least 1."""
    prefix: tuple[PromptSegment, ...] = ()
    priority: int = 0
    """vLLM's meaning: lower is sooner. Counts only with priority scheduling."""
    reserved_tokens: int = 0
    """Output tokens for which it gets KV blocks at admission, as in TGI: a batch in which all do
    so never preempts. 0: blocks as they are needed, as in vLLM."""


class FirstTokenAt(NamedTuple):
    """A call's first token is there."""

    at: float
    call_id: str


class FinishedAt(NamedTuple):
    """A call's last token is there."""

    at: float
    call_id: str
    output_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache when it was first admitted."""
    preemptions: int
    started_at: float
    """When it was first admitted from the waiting queue."""


EngineEvent = FirstTokenAt | FinishedAt


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
        self.preemptions = 0
        self.prefix_queries = 0
        """Tokens looked up in the prefix cache so far."""
        self.prefix_hits = 0
        """Tokens of those that were found."""
        self._priority_scheduling = priority_scheduling
        self._prefix_caching = prefix_caching
        self._block_tokens = profile.block_tokens
        self._budget = profile.max_batched_tokens
        self._max_seqs = min(profile.max_num_seqs, profile.max_batched_tokens)
        self._arrivals = 0
        self._slowness = 1.0
        self._reserves = False
        """Some call reserves blocks."""
        self._boundary = 0.0
        """When the last step ended, and the next begins."""
        self._events: list[EngineEvent] = []
        self._empty()

    def _empty(self) -> None:
        self._calls: dict[str, Sequence] = {}
        self._waiting: list[tuple[int, int, Sequence]] = []
        """A heap by (urgency, arrival); aborted calls are dropped when they reach its head."""
        self._waiting_count = 0
        self._head_blocked = False
        """The first in line was refused, and nothing has got better for it since."""
        self._running: dict[Sequence, None] = {}
        """The batch, in order of admission: who decodes, then at most one between two chunks."""
        self._decoding = DecodeBatch(self._block_tokens)
        self._prefilling: Sequence | None = None
        """The one between two chunks."""
        self._used_blocks = 0
        self._cache = PrefixCache(self._block_tokens)
        self._run: StepRun | None = None
        """What is under way; None: no step has begun since `_boundary`."""
        self._chunks: list[Sequence] = []
        """Sequences that prefill in the step under way."""
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
            self._reserves = True
        self._calls[call.id] = sequence
        entry = (urgency, self._arrivals, sequence)
        self._drop_absent()
        waiting = self._waiting
        heappush(waiting, entry)
        self._waiting_count += 1
        if waiting[0] is entry and len(self._running) < self._max_seqs:
            self._head_blocked = False
            self._cut_short(now)
        return True

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a call of this size can run at all: the last token is never written back."""
        return -(-(prompt_tokens + output_tokens - 1) // self._block_tokens) <= self.total_blocks

    def abort(self, call_id: str, now: float) -> bool:
        """Forget a call; no event of it comes any more. Its blocks are free at the next boundary.

        False: there is no such call (any more).
        """
        self._run_until(now)
        sequence = self._calls.pop(call_id, None)
        if sequence is None:
            return False
        sequence.present = False
        if sequence not in self._running:
            self._waiting_count -= 1
            if self._drop_absent():
                self._head_blocked = False
                self._cut_short(now)
        elif self._run is not None:
            self._leaving.append(sequence)
            self._cut_short(now)
        else:
            self._leave(sequence)
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
        return self._decoding.steps + steps + sequence.offset

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
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait, preempted ones among them."""
        return self._waiting_count

    @property
    def unused_cache_blocks(self) -> int:
        """Free blocks that still hold a prefix nobody uses, as of the last boundary."""
        return self._cache.unused_blocks

    def kv_used_tokens(self, now: float) -> int:
        """Return the tokens of KV cache in use, in whole blocks, shared prefixes once."""
        self._run_until(now)
        used = self._used_blocks
        if self._run is not None and self._run.is_decode:
            used += self._decoding.blocks_needed(self._run.done_by(now) + 1)
        return used * self._block_tokens

    def kv_reserved_tokens(self, now: float) -> int:
        """Return those tokens and the ones that calls in the batch have reserved beyond.

        What is promised is counted where the run began: since then, use has grown into it.
        """
        used_tokens = self.kv_used_tokens(now)
        began_with = self._used_blocks + self._promised_blocks()
        if self._run is not None and self._run.is_decode:
            began_with += self._decoding.blocks_needed(1)
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

    def _drop_absent(self) -> bool:
        """Drop aborted calls from the head of the queue; say whether there were any."""
        waiting = self._waiting
        dropped = False
        while waiting and not waiting[0][2].present:
            heappop(waiting)
            dropped = True
        return dropped

    # -- a step begins

    def _begin(self) -> StepRun | None:
        """Begin the step at `_boundary`, or a run of steps; None: there is nothing to do."""
        if not self._calls:
            return None
        decoding = self._decoding
        new_blocks = decoding.blocks_for_next_step()
        tokens = kv = 0
        preempting = False
        if new_blocks > self.total_blocks - self._used_blocks or self._prefilling is not None:
            preempting, budget = self._make_room()
            new_blocks = decoding.blocks_for_next_step()
            sequence = self._prefilling
            if sequence is not None:
                kv = sequence.computed
                tokens = self._compute_chunk(sequence, budget)
        self._used_blocks += new_blocks
        self._evict()
        if self._waiting_count and not self._head_blocked and not preempting:
            admitted_tokens, admitted_kv = self._admit(self._budget - decoding.size - tokens)
            tokens += admitted_tokens
            kv += admitted_kv

        profile = self.profile
        first_s = self._slowness * (
            profile.step_overhead_s
            + max(profile.decode_base_s, profile.prefill_s_per_token * (decoding.size + tokens))
            + profile.kv_read_s_per_token * (decoding.kv_tokens + kv)
        )
        if self._chunks or preempting:
            self._run = StepRun(self._boundary, 1, first_s, 0.0, is_decode=False)
        else:
            # A run of steps takes its blocks when it is complete: it may yet be cut short.
            self._used_blocks -= new_blocks
            growth_s = self._slowness * profile.kv_read_s_per_token * decoding.size
            steps = self._steps_to_decode()
            self._run = StepRun(self._boundary, steps, first_s, growth_s, is_decode=True)
        return self._run

    def _steps_to_decode(self) -> int:
        """How many steps until the first sequence finishes, or the blocks run out."""
        decoding = self._decoding
        steps = decoding.steps_to_finish()
        free = self.total_blocks - self._used_blocks
        if (steps // self._block_tokens + 1) * decoding.size > free:
            # The most that fit. At least one does: `_make_room` saw to that.
            return bisect_right(range(steps + 1), free, key=decoding.blocks_needed) - 1
        return steps

    def _evict(self) -> None:
        """Drop unused prefixes whose blocks are in use now."""
        excess = self._used_blocks + self._cache.unused_blocks - self.total_blocks
        if excess > 0:
            self._cache.evict(excess)

    def _make_room(self) -> tuple[bool, int]:
        """Preempt until every sequence in the batch gets its blocks.

        Return whether that was necessary, and the token budget of the one that prefills.
        """
        before = self.preemptions
        decoding = self._decoding
        while decoding.blocks_for_next_step() > self.total_blocks - self._used_blocks:
            self._preempt_one()
        budget = self._budget - decoding.size
        sequence = self._prefilling
        if sequence is not None:
            total = sequence.prompt_tokens + sequence.output
            reach = min(total, sequence.computed + budget)
            more = self._blocks(reach) - self._blocks(sequence.computed)
            while (
                self._prefilling is sequence
                and decoding.blocks_for_next_step() + more > self.total_blocks - self._used_blocks
            ):
                self._preempt_one()
        return self.preemptions > before, budget

    def _preempt_one(self) -> None:
        victim = max(self._running, key=lambda sequence: (sequence.urgency, sequence.arrival))
        self._leave(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        heappush(self._waiting, (victim.urgency, victim.arrival, victim))
        self._waiting_count += 1

    def _admit(self, budget: int) -> tuple[int, int]:
        """Admit from the queue's head; return the tokens they compute, and read, in this step."""
        tokens = kv = 0
        waiting = self._waiting
        while self._waiting_count and budget:
            self._drop_absent()
            sequence = waiting[0][2]
            if len(self._running) >= self._max_seqs or not self._start(sequence):
                self._head_blocked = True
                break
            heappop(waiting)
            self._waiting_count -= 1
            self._running[sequence] = None
            kv += sequence.computed
            chunk = self._compute_chunk(sequence, budget)
            tokens += chunk
            budget -= chunk
        return tokens, kv

    def _start(self, sequence: Sequence) -> bool:
        """Reserve the cached part of its prompt if the whole of it fits; say whether it does."""
        total = sequence.prompt_tokens + sequence.output
        cached = unused = 0
        looks_up = self._prefix_caching and bool(sequence.prefix)
        if looks_up:
            cached, unused = self._cache.match(sequence.prefix)
            # The last token is computed in any case: its output is the next token.
            cached = min(cached, (total - 1) // self._block_tokens)
        free = self.total_blocks - self._used_blocks - self._promised_blocks()
        if self._blocks(max(total, sequence.reach)) - cached + unused > free:
            return False
        if looks_up:
            sequence.lease = self._cache.acquire(sequence.prefix)
            self._used_blocks += unused
        sequence.shared_blocks = cached
        sequence.computed = cached * self._block_tokens
        if self._prefix_caching:
            self.prefix_queries += total
            self.prefix_hits += sequence.computed
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            sequence.started_at = self._boundary
        return True

    def _promised_blocks(self) -> int:
        """Return the blocks that calls in the batch have reserved and not taken yet."""
        if not self._reserves:
            return 0
        promised = 0
        for sequence in self._running:
            computed = sequence.computed
            if sequence.finish_step != NOT_DECODING:
                # The block for the step that begins is taken already.
                computed = sequence.prompt_tokens + self._decoding.steps + sequence.offset
            promised += max(self._blocks(sequence.reach) - self._blocks(computed), 0)
        return promised

    def _compute_chunk(self, sequence: Sequence, budget: int) -> int:
        """Let a sequence prefill in this step as much as `budget` allows; return the tokens."""
        rest = sequence.prompt_tokens + sequence.output - sequence.computed
        chunk = min(rest, budget)
        before = self._blocks(sequence.computed)
        sequence.computed += chunk
        self._used_blocks += self._blocks(sequence.computed) - before
        if sequence.lease is not None and sequence.lease.extends:
            full_blocks = sequence.computed // self._block_tokens
            sequence.shared_blocks += self._cache.extend(sequence.lease, full_blocks)
        self._evict()
        self._chunks.append(sequence)
        self._prefilling = sequence if chunk < rest else None
        return chunk

    # -- a step, or a run of steps, is complete

    def _complete(self, run: StepRun) -> None:
        decoding = self._decoding
        if run.is_decode:
            self._used_blocks += decoding.blocks_needed(run.steps)
            self._evict()
        self._run = None
        self._boundary = run.end
        decoding.move_on(run.steps)
        if self._leaving:
            for sequence in self._leaving:
                self._leave(sequence)
            self._leaving.clear()
        while (done := decoding.next_done()) is not None:
            self._finish(done)
        if self._chunks:
            for sequence in self._chunks:
                if sequence.present and sequence is not self._prefilling:
                    self._first_token(sequence)
            self._chunks.clear()

    def _first_token(self, sequence: Sequence) -> None:
        """A prefill is complete: it yields a token, and the sequence decodes from now on."""
        sequence.output += 1
        if sequence.output == 1:
            self._events.append(FirstTokenAt(self._boundary, sequence.id))
        if sequence.output == sequence.output_tokens:
            self._finish(sequence)
        else:
            self._decoding.add(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._leave(sequence)
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

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch and free what it holds."""
        del self._running[sequence]
        self._head_blocked = False
        if sequence is self._prefilling:
            self._prefilling = None
        if sequence.finish_step != NOT_DECODING:
            self._decoding.remove(sequence)
        self._used_blocks -= self._blocks(sequence.computed) - sequence.shared_blocks
        if sequence.lease is not None:
            self._used_blocks -= self._cache.release(sequence.lease)
            sequence.lease = None

    def _blocks(self, tokens: int) -> int:
        """How many KV blocks hold so many tokens."""
        return -(-tokens // self._block_tokens)
