"""A slow twin of EngineModel: vLLM's scheduling loop, a step and a block at a time."""

import math
from dataclasses import dataclass, field
from itertools import takewhile

from gateway.core.profiles import GpuProfile
from gateway.sim.engine_calls import EngineCall, EngineEvent, FinishedAt, FirstTokenAt


@dataclass(eq=False)
class Slow:
    """A sequence of the slow twin."""

    call: EngineCall
    key: tuple[int, int]
    output: int = 0
    computed: int = 0
    private: int = 0
    cached: int | None = None
    preemptions: int = 0
    started_at: float = 0.0
    decoding: bool = False
    held: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Tokens that must be computed before its next one."""
        return self.call.prompt_tokens + self.output


class SlowEngine:
    """vLLM's scheduling loop written down naively; what EngineModel must agree with."""

    def __init__(self, profile: GpuProfile, *, priority: bool, caching: bool) -> None:
        self.profile = profile
        self.priority = priority
        self.caching = caching
        self.free = profile.kv_tokens // profile.block_tokens
        self.users: dict[tuple[int, int], int] = {}
        self.unused: list[tuple[int, int]] = []
        self.waiting: list[Slow] = []
        self.running: list[Slow] = []
        self.arrivals = 0
        self.preemptions = 0
        self.hits = 0
        self.events: list[EngineEvent] = []
        self.scheduled: list[Slow] = []

    def submit(self, call: EngineCall) -> None:
        self.arrivals += 1
        self.waiting.append(Slow(call, (call.priority if self.priority else 0, self.arrivals)))

    def prefix_blocks(self, call: EngineCall) -> list[tuple[int, int]]:
        blocks: list[tuple[int, int]] = []
        end = 0
        for segment in call.prefix if self.caching else ():
            end += segment.tokens
            while (len(blocks) + 1) * self.profile.block_tokens <= end:
                blocks.append((segment.key, len(blocks)))
        return blocks

    def evict(self) -> None:
        """Empty cached blocks that nobody uses, the longest unused first, for those in need."""
        while self.free < 0:
            del self.users[self.unused.pop(0)]
            self.free += 1

    def leave(self, sequence: Slow) -> None:
        self.running.remove(sequence)
        self.free += sequence.private
        for block in reversed(sequence.held):
            self.users[block] -= 1
            if not self.users[block]:
                self.unused.append(block)
        sequence.private = sequence.computed = 0
        sequence.decoding = False
        sequence.held = []

    def compute(self, sequence: Slow, tokens: int) -> None:
        size = self.profile.block_tokens
        have = math.ceil(sequence.computed / size)
        sequence.computed += tokens
        need = math.ceil(sequence.computed / size) - have
        self.free -= need
        sequence.private += need
        for number, block in enumerate(self.prefix_blocks(sequence.call)):
            if (number + 1) * size <= sequence.computed and block not in self.users:
                self.users[block] = 1
                sequence.held.append(block)
                sequence.private -= 1

    def step_s(self, now: float) -> float:
        """Begin a step; return how long it takes."""
        profile = self.profile
        budget, read, preempted = self._schedule_running()
        if not preempted:
            budget, more = self._schedule_waiting(budget, now)
            read += more
        scheduled = profile.max_batched_tokens - budget
        return (
            profile.step_overhead_s
            + max(profile.decode_base_s, profile.prefill_s_per_token * scheduled)
            + profile.kv_read_s_per_token * read
        )

    def _schedule_running(self) -> tuple[int, int, bool]:
        size = self.profile.block_tokens
        budget = self.profile.max_batched_tokens
        before = self.preemptions
        given: dict[Slow, tuple[int, int]] = {}
        for sequence in list(self.running):
            tokens = min(sequence.total - sequence.computed, budget)
            blocks = math.ceil((sequence.computed + tokens) / size)
            blocks -= math.ceil(sequence.computed / size)
            while sequence in self.running and blocks > self.free + len(self.unused):
                victim = max(self.running, key=lambda s: s.key)
                budget += given.pop(victim, (0, 0))[0]
                self.leave(victim)
                victim.preemptions += 1
                self.preemptions += 1
                self.waiting.append(victim)
            if sequence in self.running:
                given[sequence] = (tokens, sequence.computed)
                self.compute(sequence, tokens)
                budget -= tokens
        self.evict()
        self.scheduled = list(given)
        return budget, sum(read for _, read in given.values()), self.preemptions > before

    def _schedule_waiting(self, budget: int, now: float) -> tuple[int, int]:
        size = self.profile.block_tokens
        total_read = 0
        self.waiting.sort(key=lambda s: s.key)
        while self.waiting and budget and len(self.running) < self.profile.max_num_seqs:
            sequence = self.waiting[0]
            found = list(
                takewhile(lambda block: block in self.users, self.prefix_blocks(sequence.call))
            )
            cached = min(len(found), (sequence.total - 1) // size)
            need = math.ceil(sequence.total / size) - cached
            unused = [block for block in found if not self.users[block]]
            if need + len(unused) > self.free + len(self.unused):
                break
            for block in unused:
                self.unused.remove(block)
            for block in found:
                self.users[block] += 1
            self.hits += cached * size
            sequence.held = found
            sequence.computed = cached * size
            if sequence.cached is None:
                sequence.cached, sequence.started_at = sequence.computed, now
            self.running.append(self.waiting.pop(0))
            total_read += sequence.computed
            tokens = min(sequence.total - sequence.computed, budget)
            self.compute(sequence, tokens)
            budget -= tokens
            self.evict()
            self.scheduled.append(sequence)
        return budget, total_read

    def remove(self, call_ids: list[str]) -> None:
        """Take these calls out of the batch, those of them that are in it."""
        by_id = {sequence.call.id: sequence for sequence in self.running}
        for sequence in [by_id[call_id] for call_id in call_ids if call_id in by_id]:
            self.leave(sequence)

    def complete(self, now: float, aborted: list[str]) -> None:
        """The step under way ends; these calls were aborted meanwhile."""
        self.remove(aborted)
        # Where several end at once, the order in which EngineModel lets them go.
        self.scheduled.sort(key=lambda s: (not s.decoding, s.key[1] if s.decoding else 0))
        for sequence in self.scheduled:
            if sequence not in self.running or sequence.computed < sequence.total:
                continue
            sequence.decoding = True
            sequence.output += 1
            call = sequence.call
            if sequence.output == 1:
                self.events.append(FirstTokenAt(now, call.id))
            if sequence.output == call.output_tokens:
                self.leave(sequence)
                cached = sequence.cached or 0
                self.events.append(
                    FinishedAt(
                        now,
                        call.id,
                        sequence.output,
                        cached,
                        sequence.preemptions,
                        sequence.started_at,
                    )
                )


@dataclass(frozen=True)
class Action:
    """At an instant, a call comes, or leaves (`abort`)."""

    at: float
    call: EngineCall
    abort: bool = False


def run_slowly(engine: SlowEngine, actions: list[Action]) -> None:
    """Take the actions in at step boundaries until all is done."""
    todo = list(actions)
    now = 0.0
    while todo or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now = max(now, todo[0].at)
        end = None
        if not todo or todo[0].at > now:
            end = now + engine.step_s(now)
        aborted = []
        while todo and todo[0].at <= (now if end is None else end):
            action = todo.pop(0)
            if not action.abort:
                engine.submit(action.call)
            else:
                aborted.append(action.call.id)
                engine.waiting = [s for s in engine.waiting if s.call.id != action.call.id]
        if end is None:
            engine.remove(aborted)
        else:
            engine.complete(end, aborted)
            now = end
