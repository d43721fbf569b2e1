"""Batching: who is in an engine's batch, who waits for it, and what each computes in a step (pure).

Running sequences come first (one decode token, or a chunk of prefill), then waiting ones while the
token budget, `max_num_seqs` and KV blocks allow. A waiting sequence never preempts a running one.
When a running sequence cannot get a block, the running sequence that arrived last (with priority
scheduling: the least urgent, ties by arrival) is preempted: freed, put back in its place among the
waiting, recomputed over prompt and output later; that step admits nobody. A sequence is admitted
only if its whole prompt, with what it has generated, fits in free blocks.

A simplification: where vLLM, under priority scheduling, ends a step's work at the first sequence
that preempts itself, here the sequences behind it still get their token.
"""

from bisect import bisect_right
from heapq import heappop, heappush
from typing import NamedTuple

from gateway.core.profiles import GpuProfile
from gateway.sim.batch import NOT_DECODING, DecodeBatch, Sequence
from gateway.sim.kv_cache import KvCache


class StepWork(NamedTuple):
    """What a step computes besides one token of each sequence that decodes."""

    tokens: int
    """Of prompts."""
    kv_tokens: int
    """Read for those, from before the step."""
    new_blocks: int
    """Taken by those that decode."""
    preempts: bool


class Batching:
    """The batch and the queue before it. A step is `begin_step`, then `prefilled`."""

    def __init__(self, profile: GpuProfile, kv: KvCache) -> None:
        self.preemptions = 0
        self._kv = kv
        self._block_tokens = profile.block_tokens
        self._budget = profile.max_batched_tokens
        self._max_seqs = min(profile.max_num_seqs, profile.max_batched_tokens)
        self._reserves = False
        """Some call reserves blocks."""
        self.empty()

    def empty(self) -> None:
        """Lose everything, but not the counts."""
        self.waiting = 0
        """Sequences that wait, preempted ones among them."""
        self.running: dict[Sequence, None] = {}
        """The batch, in order of admission: who decodes, then at most one between two chunks."""
        self.decoding = DecodeBatch(self._block_tokens)
        self.chunks: list[Sequence] = []
        """Sequences that prefill in the step under way."""
        self._queue: list[tuple[int, int, Sequence]] = []
        """A heap by (urgency, arrival); aborted calls are dropped when they reach its head."""
        self._head_blocked = False
        """The first in line was refused, and nothing has got better for it since."""
        self._prefilling: Sequence | None = None
        """The one between two chunks."""

    # -- who comes and who goes

    def enqueue(self, sequence: Sequence) -> bool:
        """Let a sequence wait; say whether the next step may have room for it."""
        if sequence.reach:
            self._reserves = True
        self._drop_absent()
        self._queue_up(sequence)
        if self._queue[0][2] is sequence and len(self.running) < self._max_seqs:
            self._head_blocked = False
            return True
        return False

    def dequeue(self) -> bool:
        """Forget a waiting sequence that is `present` no more; say whether the head changed."""
        self.waiting -= 1
        if self._drop_absent():
            self._head_blocked = False
            return True
        return False

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch and free what it holds."""
        del self.running[sequence]
        self._head_blocked = False
        if sequence is self._prefilling:
            self._prefilling = None
        if sequence.finish_step != NOT_DECODING:
            self.decoding.remove(sequence)
        self._kv.release(sequence)

    def _queue_up(self, sequence: Sequence) -> None:
        heappush(self._queue, (sequence.urgency, sequence.arrival, sequence))
        self.waiting += 1

    def _drop_absent(self) -> bool:
        """Drop aborted calls from the head of the queue; say whether there were any."""
        queue = self._queue
        dropped = False
        while queue and not queue[0][2].present:
            heappop(queue)
            dropped = True
        return dropped

    # -- steps

    def begin_step(self, now: float) -> StepWork:
        """Preempt, prefill and admit for the step that begins now."""
        kv = self._kv
        decoding = self.decoding
        new_blocks = decoding.blocks_for_next_step()
        tokens = kv_tokens = 0
        preempts = False
        if new_blocks > kv.total_blocks - kv.used_blocks or self._prefilling is not None:
            preempts, budget = self._make_room()
            new_blocks = decoding.blocks_for_next_step()
            sequence = self._prefilling
            if sequence is not None:
                kv_tokens = sequence.computed
                tokens = self._compute_chunk(sequence, budget)
        kv.take(new_blocks)
        if self.waiting and not self._head_blocked and not preempts:
            admitted_tokens, admitted_kv = self._admit(self._budget - decoding.size - tokens, now)
            tokens += admitted_tokens
            kv_tokens += admitted_kv
        return StepWork(tokens, kv_tokens, new_blocks, preempts)

    def steps_to_decode(self) -> int:
        """Return how many steps until the first sequence finishes, or the blocks run out."""
        decoding = self.decoding
        steps = decoding.steps_to_finish()
        free = self._kv.total_blocks - self._kv.used_blocks
        if (steps // self._block_tokens + 1) * decoding.size > free:
            # The most that fit. At least one does: `_make_room` saw to that.
            return bisect_right(range(steps + 1), free, key=decoding.blocks_needed) - 1
        return steps

    def prefilled(self) -> list[Sequence]:
        """Return whose prompts the step that ends has completed."""
        done = [
            sequence
            for sequence in self.chunks
            if sequence.present and sequence is not self._prefilling
        ]
        self.chunks.clear()
        return done

    def promised_blocks(self) -> int:
        """Return the blocks that calls in the batch have reserved and not taken yet."""
        if not self._reserves:
            return 0
        blocks = self._kv.blocks
        promised = 0
        for sequence in self.running:
            computed = sequence.computed
            if sequence.finish_step != NOT_DECODING:
                # The block for the step that begins is taken already.
                computed = sequence.prompt_tokens + self.decoding.steps + sequence.offset
            promised += max(blocks(sequence.reach) - blocks(computed), 0)
        return promised

    def _make_room(self) -> tuple[bool, int]:
        """Preempt until every sequence in the batch gets its blocks.

        Return whether that was necessary, and the token budget of the one that prefills.
        """
        before = self.preemptions
        kv = self._kv
        decoding = self.decoding
        while decoding.blocks_for_next_step() > kv.total_blocks - kv.used_blocks:
            self._preempt_one()
        budget = self._budget - decoding.size
        sequence = self._prefilling
        if sequence is not None:
            total = sequence.prompt_tokens + sequence.output
            reach = min(total, sequence.computed + budget)
            more = kv.blocks(reach) - kv.blocks(sequence.computed)
            while (
                self._prefilling is sequence
                and decoding.blocks_for_next_step() + more > kv.total_blocks - kv.used_blocks
            ):
                self._preempt_one()
        return self.preemptions > before, budget

    def _preempt_one(self) -> None:
        victim = max(self.running, key=lambda sequence: (sequence.urgency, sequence.arrival))
        self.leave(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self._queue_up(victim)

    def _admit(self, budget: int, now: float) -> tuple[int, int]:
        """Admit from the queue's head; return the tokens they compute, and read, in this step."""
        tokens = kv_tokens = 0
        queue = self._queue
        while self.waiting and budget:
            self._drop_absent()
            sequence = queue[0][2]
            if len(self.running) >= self._max_seqs or not self._kv.admit(
                sequence, self.promised_blocks(), now
            ):
                self._head_blocked = True
                break
            heappop(queue)
            self.waiting -= 1
            self.running[sequence] = None
            kv_tokens += sequence.computed
            chunk = self._compute_chunk(sequence, budget)
            tokens += chunk
            budget -= chunk
        return tokens, kv_tokens

    def _compute_chunk(self, sequence: Sequence, budget: int) -> int:
        """Let a sequence prefill in this step as much as `budget` allows; return the tokens."""
        rest = sequence.prompt_tokens + sequence.output - sequence.computed
        chunk = min(rest, budget)
        self._kv.compute(sequence, chunk)
        self.chunks.append(sequence)
        self._prefilling = sequence if chunk < rest else None
        return chunk
