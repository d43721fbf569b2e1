"""EngineModel: continuous batching, step by step and in jumps, against arithmetic and a slow twin."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.profiles import PROFILES, GpuProfile
from gateway.core.types import PromptSegment
from gateway.sim.engine import EngineCall, EngineEvent, EngineModel, FinishedAt, FirstTokenAt

A100 = PROFILES["A100-80G"]
TINY = GpuProfile(
    name="tiny",
    prefill_s_per_token=0.01 * math.sqrt(2),
    decode_base_s=0.03 * math.sqrt(3),
    kv_read_s_per_token=0.0003 * math.sqrt(5),
    step_overhead_s=0.003 * math.sqrt(7),
    kv_tokens=160,
    max_batched_tokens=24,
    max_num_seqs=6,
    block_tokens=4,
)


# -- a slow twin: one step after the other, one block after the other


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

    def complete(self, now: float, aborted: set[str]) -> None:
        """The step under way ends; these calls were aborted meanwhile."""
        for sequence in [s for s in self.running if s.call.id in aborted]:
            self.leave(sequence)
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
        aborted = set()
        while todo and todo[0].at <= (now if end is None else end):
            action = todo.pop(0)
            if not action.abort:
                engine.submit(action.call)
            else:
                aborted.add(action.call.id)
                engine.waiting = [s for s in engine.waiting if s.call.id != action.call.id]
        if end is None:
            for sequence in [s for s in engine.running if s.call.id in aborted]:
                engine.leave(sequence)
        else:
            engine.complete(end, aborted)
            now = end


def run_in_jumps(engine: EngineModel, actions: list[Action]) -> list[EngineEvent]:
    """Feed the actions; wake only when the engine says so."""
    events: list[EngineEvent] = []
    asked_at = -1.0
    for action in actions:
        # Asking begins a step, so calls of one instant are handed over together.
        while (
            action.at > asked_at and (at := engine.next_event_at()) is not None and at <= action.at
        ):
            events += engine.advance(at)
        asked_at = action.at
        if action.abort:
            engine.abort(action.call.id, action.at)
        else:
            engine.submit(action.call, action.at)
    return events + finish(engine)


def finish(engine: EngineModel) -> list[EngineEvent]:
    """Let everything in the engine end."""
    events = []
    while (at := engine.next_event_at()) is not None:
        events += engine.advance(at)
    return events


def a_call(
    id: str = "a",
    prompt_tokens: int = 100,
    output_tokens: int = 10,
    prefix: tuple[PromptSegment, ...] = (),
    priority: int = 0,
) -> EngineCall:
    """Return a small call."""
    return EngineCall(id, prompt_tokens, output_tokens, prefix, priority)


PREFIXES = [
    (),
    (PromptSegment(1, 9),),
    (PromptSegment(1, 9), PromptSegment(11, 10)),
    (PromptSegment(1, 9), PromptSegment(12, 3), PromptSegment(121, 17)),
    (PromptSegment(2, 32),),
    (PromptSegment(2, 32), PromptSegment(21, 20)),
    (PromptSegment(3, 2), PromptSegment(31, 1), PromptSegment(311, 30)),
]


@st.composite
def workloads(draw: st.DrawFn) -> list[Action]:
    """Calls that overfill TINY, some of them aborted, at instants no step ends at."""
    actions = []
    now = 0.0
    for number in range(draw(st.integers(1, 20))):
        now += draw(st.integers(0, 40)) * 0.03127
        prefix = draw(st.sampled_from(PREFIXES))
        prompt = sum(segment.tokens for segment in prefix) + draw(st.integers(0, 60))
        output = draw(st.integers(1, 40))
        call = a_call(str(number), max(prompt, 1), output, prefix, draw(st.integers(-1, 1)))
        actions.append(Action(now, call))
        if draw(st.integers(0, 4)) == 0:
            actions.append(Action(now + draw(st.integers(1, 90)) * 0.0217, call, abort=True))
    return sorted(actions, key=lambda action: action.at)


def by_call(events: list[EngineEvent]) -> dict[tuple[str, type], EngineEvent]:
    """Index events by call and kind."""
    return {(event.call_id, type(event)): event for event in events}


def assert_same(events: list[EngineEvent], others: list[EngineEvent]) -> None:
    """The same things happened to every call, at the same instants but for rounding."""
    found, expected = by_call(events), by_call(others)
    assert len(found) == len(events)
    assert found.keys() == expected.keys()
    for key, event in found.items():
        other = expected[key]
        assert event.at == pytest.approx(other.at, rel=1e-9)
        if isinstance(event, FinishedAt) and isinstance(other, FinishedAt):
            assert event.started_at == pytest.approx(other.started_at, rel=1e-9)
            assert event[2:5] == other[2:5]


@settings(max_examples=300, deadline=None)
@given(workloads(), st.booleans(), st.booleans())
def test_jumps_end_where_single_steps_end(
    actions: list[Action], priority: bool, caching: bool
) -> None:
    slow = SlowEngine(TINY, priority=priority, caching=caching)
    fast = EngineModel(TINY, priority_scheduling=priority, prefix_caching=caching)

    run_slowly(slow, actions)
    events = run_in_jumps(fast, actions)

    assert_same(events, slow.events)
    assert fast.preemptions == slow.preemptions
    assert fast.prefix_hits == slow.hits
    assert all(earlier.at <= later.at for earlier, later in pairwise(events))
