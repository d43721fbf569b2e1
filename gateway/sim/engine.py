"""EngineModel: one engine with continuous batching as in vLLM V1, in virtual time (pure).

Each step: running sequences first (one decode token, or a chunk of prefill), then waiting ones
while the token budget, `max_num_seqs` and KV blocks allow. A waiting sequence never preempts a
running one. When a running sequence cannot get a block, the running sequence that arrived last
(with priority scheduling: the least urgent, ties by arrival) is preempted: freed, put back in its
place among the waiting, recomputed over prompt and output later; that step admits nobody.
A sequence is admitted only if its whole prompt, with what it has generated, fits in free blocks.

The step's duration is that of `gateway.core.profiles`; a sequence reads the tokens computed before
the step. Runs of steps in which everybody only decodes are jumped over in closed form, so cost
depends on the number of calls and chunks, not of tokens.

A simplification: where vLLM, under priority scheduling, ends a step's work at the first sequence
that preempts itself, here the sequences behind it still get their token.
"""

from bisect import bisect_right
from heapq import heappop, heappush
from math import sqrt
from typing import NamedTuple

from gateway.core.profiles import GpuProfile
from gateway.core.types import PromptSegment
from gateway.sim.prefix_cache import PrefixCache, PrefixLease


class EngineCall(NamedTuple):
    """What an engine is asked to do, and how long the answer will turn out."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """The true length, at least 1."""
    prefix: tuple[PromptSegment, ...] = ()
    priority: int = 0
    """vLLM's meaning: lower is sooner. Counts only with priority scheduling."""


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

_NEVER = -1


class _Sequence:
    """A call inside the engine. While it decodes, its counts follow from the engine's steps."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "call",
        "computed",
        "finish_step",
        "lease",
        "offset",
        "output",
        "preemptions",
        "present",
        "shared_blocks",
        "started_at",
        "urgency",
    )

    def __init__(self, call: EngineCall, urgency: int, arrival: int) -> None:
        self.call = call
        self.urgency = urgency
        self.arrival = arrival
        self.present = True
        self.output = 0
        """Tokens generated; while decoding it is the engine's steps + `offset` instead."""
        self.computed = 0
        """Tokens in the KV cache; while decoding it is one less than prompt + output."""
        self.offset = 0
        self.finish_step = _NEVER
        """The engine's step count when it will be done; _NEVER unless decoding."""
        self.shared_blocks = 0
        """Of its blocks, those that belong to the prefix cache."""
        self.lease: PrefixLease | None = None
        self.cached_tokens = 0
        self.preemptions = 0
        self.started_at = 0.0


class EngineModel:
    """One engine's queue, batch and KV cache.

    Times are seconds on the caller's clock; a method's `now` must not be earlier than any before.
    A step begins when time moves past its start, or when `next_event_at` is asked. Calls that come
    later join at the next step boundary.
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
        self._boundary = 0.0
        """When the last step ended: where the segment under way begins."""
        self._events: list[EngineEvent] = []
        self._steps = 0
        """Steps until `_boundary`."""
        self._empty()

    def _empty(self) -> None:
        self._calls: dict[str, _Sequence] = {}
        self._running: dict[_Sequence, None] = {}
        """In order of admission."""
        self._waiting: list[tuple[int, int, _Sequence]] = []
        """A heap by (urgency, arrival); sequences that left are dropped when they surface."""
        self._waiting_count = 0
        self._head_blocked = False
        """The first in line was refused, and nothing has got better for it since."""
        self._prefilling: _Sequence | None = None
        """The sequence that is between two chunks: there is never more than one."""
        self._cache = PrefixCache(self._block_tokens)
        self._used_blocks = 0
        # Sequences that decode, in sum.
        self._decoding = 0
        self._decoding_kv = 0
        """Tokens they have in the cache."""
        self._block_phase = [0] * self._block_tokens
        """How many of them need a new block in steps whose number has this remainder."""
        self._finishing: list[tuple[int, int, _Sequence]] = []
        """A heap by (finish_step, arrival); entries whose finish_step is not theirs are stale."""
        # The segment under way: one step, or a run of steps that only decode.
        self._segment_steps = 0
        """0: no step has begun since `_boundary`."""
        self._segment_end = 0.0
        self._step_s = 0.0
        """Duration of the segment's first step."""
        self._step_growth_s = 0.0
        """By how much each step is longer than the one before."""
        self._is_run = False
        self._chunks: list[_Sequence] = []
        """Sequences that prefill in the step under way."""
        self._leaving: list[_Sequence] = []
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
        if not self.fits(call.prompt_tokens, call.output_tokens):
            raise ValueError(f"call '{call.id}' is larger than the KV cache")
        if not self._calls and not self._segment_steps:
            self._boundary = now
        self._arrivals += 1
        urgency = call.priority if self._priority_scheduling else 0
        sequence = _Sequence(call, urgency, self._arrivals)
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
        elif self._segment_steps:
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
        if not self._segment_steps and not self._begin():
            return None
        return self._segment_end

    def next_step_at(self, now: float) -> float | None:
        """Return the first step boundary after `now`, for callers that stream; None: idle."""
        self._run_until(now)
        if not self._segment_steps and not self._begin():
            return None
        return self._after(self._steps_within(now) + 1)

    def output_tokens(self, call_id: str, now: float) -> int:
        """Return how many tokens a call in the engine has produced by `now` (KeyError: unknown)."""
        self._run_until(now)
        sequence = self._calls[call_id]
        if sequence.finish_step == _NEVER:
            return sequence.output
        return self._steps + self._steps_within(now) + sequence.offset

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
        """Free blocks that still hold a prefix nobody uses."""
        return self._cache.unused_blocks

    def kv_used_tokens(self, now: float) -> int:
        """Return the tokens of KV cache in use, in whole blocks, shared prefixes once."""
        self._run_until(now)
        used = self._used_blocks
        if self._is_run and self._segment_steps:
            used += self._blocks_needed(self._steps_within(now) + 1)
        return used * self._block_tokens

    def kv_usage(self, now: float) -> float:
        """Return the share of the KV cache in use, 0 to 1."""
        return self.kv_used_tokens(now) / (self.total_blocks * self._block_tokens)

    # -- time

    def _run_until(self, now: float) -> None:
        while True:
            if not self._segment_steps and (self._boundary >= now or not self._begin()):
                return
            if self._segment_end > now:
                return
            self._complete()

    def _after(self, steps: int) -> float:
        """When this many steps of the segment under way will be done."""
        if steps >= self._segment_steps:
            return self._segment_end
        return self._boundary + steps * (self._step_s + self._step_growth_s * (steps - 1) / 2)

    def _steps_within(self, now: float) -> int:
        """How many steps of the segment under way are done by `now`."""
        last = self._segment_steps - 1
        if last <= 0:
            return 0
        elapsed_s = now - self._boundary
        if elapsed_s < self._step_s:
            return 0
        half_growth_s = self._step_growth_s / 2
        linear_s = self._step_s - half_growth_s
        steps = int(2 * elapsed_s / (linear_s + sqrt(linear_s**2 + 4 * half_growth_s * elapsed_s)))
        if self._after(steps) > now:
            steps -= 1
        elif self._after(steps + 1) <= now:
            steps += 1
        return min(steps, last)

    def _cut_short(self, now: float) -> None:
        """End the run of steps under way at its first boundary at or after `now`."""
        if self._segment_steps > 1:
            steps = self._steps_within(now)
            if not steps or self._after(steps) < now:
                steps += 1
            self._segment_end = self._after(steps)
            self._segment_steps = steps

    def _drop_absent(self) -> bool:
        """Drop aborted calls from the head of the queue; say whether there were any."""
        waiting = self._waiting
        dropped = False
        while waiting and not waiting[0][2].present:
            heappop(waiting)
            dropped = True
        return dropped

    # -- a step begins

    def _begin(self) -> bool:
        """Begin the step at `_boundary`, or a run of steps; False: there is nothing to do."""
        if not self._calls:
            return False
        phase = self._block_phase
        new_blocks = phase[self._steps % self._block_tokens]
        free = self.total_blocks - self._used_blocks
        chunk_tokens = chunk_kv = 0
        preempting = False
        if new_blocks > free or self._prefilling is not None:
            preempting, budget = self._make_room()
            new_blocks = phase[self._steps % self._block_tokens]
            sequence = self._prefilling
            if sequence is not None:
                chunk_kv = sequence.computed
                chunk_tokens = self._compute_chunk(sequence, budget)
        self._used_blocks += new_blocks
        self._evict()
        if self._waiting_count and not self._head_blocked and not preempting:
            tokens, kv = self._admit(self._budget - self._decoding - chunk_tokens)
            chunk_tokens += tokens
            chunk_kv += kv

        profile = self.profile
        tokens = self._decoding + chunk_tokens
        kv = self._decoding_kv + chunk_kv
        step_s = profile.prefill_s_per_token * tokens
        if step_s < profile.decode_base_s:
            step_s = profile.decode_base_s
        self._step_s = self._slowness * (
            profile.step_overhead_s + step_s + profile.kv_read_s_per_token * kv
        )
        if self._chunks or preempting:
            self._is_run = False
            self._segment_steps = 1
            self._segment_end = self._boundary + self._step_s
        else:
            self._used_blocks -= new_blocks  # a run takes its blocks when it is complete
            self._begin_run()
        return True

    def _begin_run(self) -> None:
        """Decode until the first sequence finishes or the blocks run out."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0]:
            heappop(finishing)
        steps = finishing[0][0] - self._steps
        free = self.total_blocks - self._used_blocks
        if (steps // self._block_tokens + 1) * self._decoding > free:
            # The last count that fits; `_make_room` saw to it that one step does.
            steps = bisect_right(range(steps + 1), free, key=self._blocks_needed) - 1
        self._is_run = True
        self._segment_steps = steps
        self._step_growth_s = self._slowness * self.profile.kv_read_s_per_token * self._decoding
        self._segment_end = self._boundary + steps * (
            self._step_s + self._step_growth_s * (steps - 1) / 2
        )

    def _blocks_needed(self, steps: int) -> int:
        """How many new blocks the decoding sequences take in the next `steps` steps."""
        size = self._block_tokens
        rounds, rest = divmod(steps, size)
        needed = rounds * self._decoding
        if rest:
            phase = self._block_phase
            start = self._steps % size
            end = start + rest
            needed += sum(phase[start:end])
            if end > size:
                needed += sum(phase[: end - size])
        return needed

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
        size = self._block_tokens
        remainder = self._steps % size
        while self._block_phase[remainder] > self.total_blocks - self._used_blocks:
            self._preempt_one()
        budget = self._budget - self._decoding
        sequence = self._prefilling
        if sequence is not None:
            total = sequence.call.prompt_tokens + sequence.output
            reach = min(total, sequence.computed + budget)
            more = -(-reach // size) - -(-sequence.computed // size)
            while (
                self._prefilling is sequence
                and self._block_phase[remainder] + more > self.total_blocks - self._used_blocks
            ):
                self._preempt_one()
        return self.preemptions > before, budget

    def _preempt_one(self) -> None:
        victim = max(self._running, key=lambda sequence: (sequence.urgency, sequence.arrival))
        if victim.finish_step != _NEVER:
            victim.output = self._steps + victim.offset
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
        while waiting and budget:
            sequence = waiting[0][2]
            if not sequence.present:
                heappop(waiting)
                continue
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

    def _start(self, sequence: _Sequence) -> bool:
        """Reserve the cached part of its prompt if the whole of it fits; say whether it does."""
        call = sequence.call
        size = self._block_tokens
        total = call.prompt_tokens + sequence.output
        cached = unused = 0
        look_up = self._prefix_caching and bool(call.prefix)
        if look_up:
            cached, unused = self._cache.match(call.prefix)
            # The last token is computed in any case: its output is the next token.
            cached = min(cached, (total - 1) // size)
        if -(-total // size) - cached + unused > self.total_blocks - self._used_blocks:
            return False
        if look_up:
            sequence.lease = self._cache.acquire(call.prefix)
            self._used_blocks += unused
        if self._prefix_caching:
            self.prefix_queries += total
            self.prefix_hits += cached * size
        sequence.shared_blocks = cached
        sequence.computed = cached * size
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            sequence.started_at = self._boundary
        return True

    def _compute_chunk(self, sequence: _Sequence, budget: int) -> int:
        """Let a sequence prefill in this step as much as `budget` allows; return the tokens."""
        size = self._block_tokens
        rest = sequence.call.prompt_tokens + sequence.output - sequence.computed
        chunk = min(rest, budget)
        before = -(-sequence.computed // size)
        sequence.computed += chunk
        self._used_blocks += -(-sequence.computed // size) - before
        if sequence.lease is not None and sequence.lease.extends:
            sequence.shared_blocks += self._cache.extend(sequence.lease, sequence.computed // size)
        self._evict()
        self._chunks.append(sequence)
        self._prefilling = sequence if chunk < rest else None
        return chunk

    # -- a step, or a run of steps, is complete

    def _complete(self) -> None:
        steps = self._segment_steps
        if self._is_run:
            self._used_blocks += self._blocks_needed(steps)
            self._evict()
        self._segment_steps = 0
        self._boundary = self._segment_end
        self._steps += steps
        self._decoding_kv += self._decoding * steps
        if self._leaving:
            for sequence in self._leaving:
                self._leave(sequence)
            self._leaving.clear()
        finishing = self._finishing
        while finishing and finishing[0][0] <= self._steps:
            finish_step, _, sequence = heappop(finishing)
            if sequence.finish_step == finish_step:
                self._finish(sequence)
        if self._chunks:
            for sequence in self._chunks:
                if sequence.present and sequence is not self._prefilling:
                    self._first_token(sequence)
            self._chunks.clear()

    def _first_token(self, sequence: _Sequence) -> None:
        """A prefill is complete: it yields a token, and the sequence decodes from now on."""
        call = sequence.call
        sequence.output += 1
        if sequence.output == 1:
            self._events.append(FirstTokenAt(self._boundary, call.id))
        sequence.offset = sequence.output - self._steps
        sequence.finish_step = call.output_tokens - sequence.offset
        self._decoding += 1
        self._decoding_kv += sequence.computed
        self._block_phase[(self._steps - sequence.computed) % self._block_tokens] += 1
        if sequence.finish_step <= self._steps:
            self._finish(sequence)
        else:
            heappush(self._finishing, (sequence.finish_step, sequence.arrival, sequence))

    def _finish(self, sequence: _Sequence) -> None:
        call = sequence.call
        self._leave(sequence)
        del self._calls[call.id]
        self._events.append(
            FinishedAt(
                self._boundary,
                call.id,
                call.output_tokens,
                sequence.cached_tokens,
                sequence.preemptions,
                sequence.started_at,
            )
        )

    def _leave(self, sequence: _Sequence) -> None:
        """Take a sequence out of the batch and free what it holds."""
        del self._running[sequence]
        self._head_blocked = False
        if sequence is self._prefilling:
            self._prefilling = None
        if sequence.finish_step != _NEVER:
            sequence.finish_step = _NEVER
            sequence.computed = sequence.call.prompt_tokens + self._steps + sequence.offset - 1
            self._decoding -= 1
            self._decoding_kv -= sequence.computed
            self._block_phase[(self._steps - sequence.computed) % self._block_tokens] -= 1
        self._used_blocks -= -(-sequence.computed // self._block_tokens) - sequence.shared_blocks
        if sequence.lease is not None:
            self._used_blocks -= self._cache.release(sequence.lease)
            sequence.lease = None
