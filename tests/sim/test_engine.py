"""EngineModel: continuous batching in jumps, against arithmetic and a step-by-step twin."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.core.profiles import PROFILES, GpuProfile
from gateway.core.types import PromptSegment
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, EngineEvent, FinishedAt, FirstTokenAt
from tests.sim.slow_engine import Action, SlowEngine, run_slowly

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
"""Few blocks, a small budget, and step times that never meet an arrival's."""


def a_call(
    id: str = "a",
    prompt_tokens: int = 100,
    output_tokens: int = 10,
    prefix: tuple[PromptSegment, ...] = (),
    priority: int = 0,
) -> EngineCall:
    """Return a small call."""
    return EngineCall(id, prompt_tokens, output_tokens, prefix, priority)


def finish(engine: EngineModel) -> list[EngineEvent]:
    """Let everything in the engine end."""
    events = []
    while (at := engine.next_event_at()) is not None:
        events += engine.advance(at)
    return events


def first_tokens(events: list[EngineEvent]) -> dict[str, float]:
    """When each call's first token came."""
    return {event.call_id: event.at for event in events if isinstance(event, FirstTokenAt)}


def endings(events: list[EngineEvent]) -> dict[str, FinishedAt]:
    """How each call finished."""
    return {event.call_id: event for event in events if isinstance(event, FinishedAt)}


def step_s(profile: GpuProfile, scheduled_tokens: int, kv_tokens: int) -> float:
    """The documented duration of a step."""
    return (
        profile.step_overhead_s
        + max(profile.decode_base_s, profile.prefill_s_per_token * scheduled_tokens)
        + profile.kv_read_s_per_token * kv_tokens
    )


# -- one call, a few calls: arithmetic


@pytest.mark.parametrize("name", PROFILES)
def test_a_lone_call_takes_the_sum_of_its_steps(name: str) -> None:
    profile = PROFILES[name]
    engine = EngineModel(profile)
    engine.submit(a_call(prompt_tokens=1500, output_tokens=700), 5.0)

    events = finish(engine)

    first = 5.0 + step_s(profile, 1500, 0)
    last = first + sum(step_s(profile, 1, 1500 + number) for number in range(699))
    assert first_tokens(events)["a"] == pytest.approx(first, rel=1e-9)
    assert endings(events)["a"].at == pytest.approx(last, rel=1e-9)


def test_a_prompt_over_the_budget_is_computed_in_chunks() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call(prompt_tokens=5000, output_tokens=1), 0.0)

    events = finish(engine)

    chunks = step_s(A100, 2048, 0) + step_s(A100, 2048, 2048) + step_s(A100, 904, 4096)
    assert first_tokens(events)["a"] == pytest.approx(chunks)
    assert endings(events)["a"].at == first_tokens(events)["a"]


def test_calls_that_decode_together_share_their_steps() -> None:
    alone, together = EngineModel(A100), EngineModel(A100)
    alone.submit(a_call("0", 100, 200), 0.0)
    for number in range(8):
        together.submit(a_call(str(number), 100, 200), 0.0)

    alone_s = endings(finish(alone))["0"].at
    together_s = endings(finish(together))["7"].at

    assert alone_s < together_s < 1.2 * alone_s


def test_a_long_prompt_stalls_the_tokens_of_others() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call("chat", 50, 1000), 0.0)
    engine.advance(2.0)
    engine.submit(a_call("long", 8000, 1), 2.0)

    before = engine.output_tokens("chat", 2.0)
    long_at = first_tokens(finish_one(engine, "long"))["long"]

    chunks = 4  # 8,000 tokens in chunks of 2,047: one token of each step is chat's
    assert long_at - 2.0 > chunks * step_s(A100, 1900, 0)
    assert engine.output_tokens("chat", long_at) - before in (chunks, chunks + 1)


def finish_one(engine: EngineModel, call_id: str) -> list[EngineEvent]:
    """Advance until this call is done."""
    events: list[EngineEvent] = []
    while call_id not in endings(events):
        at = engine.next_event_at()
        assert at is not None
        events += engine.advance(at)
    return events


def test_what_comes_in_the_middle_of_a_step_waits_for_its_end() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call("first", 100, 500), 0.0)
    boundary = engine.next_step_at(3.0)
    assert boundary is not None
    engine.submit(a_call("second", 100, 1), (3.0 + boundary) / 2)

    events = finish(engine)

    assert endings(events)["second"].started_at == pytest.approx(boundary, rel=1e-9)


def test_a_streaming_caller_sees_one_token_a_step() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call(prompt_tokens=3000, output_tokens=50), 0.0)
    counts = []
    now = 0.0
    while (at := engine.next_step_at(now)) is not None:
        now = at
        if endings(engine.advance(now)):
            break
        counts.append(engine.output_tokens("a", now))

    assert counts == [0, *range(1, 50)]


# -- room: slots, blocks, order


def test_a_call_waits_for_a_slot() -> None:
    engine = EngineModel(TINY)
    for number in range(8):
        engine.submit(a_call(str(number), 1, 10), 0.0)
    engine.advance(0.01)

    assert (engine.running, engine.waiting) == (6, 2)

    started = {call_id: event.started_at for call_id, event in endings(finish(engine)).items()}
    assert started["6"] == started["7"] > 0.0 == started["5"]


def test_a_prompt_that_does_not_fit_waits_and_holds_back_those_behind_it() -> None:
    engine = EngineModel(TINY, prefix_caching=False)
    engine.submit(a_call("holds", 100, 5), 0.0)
    engine.submit(a_call("large", 90, 5), 0.1)
    engine.submit(a_call("small", 4, 5), 0.2)

    ended = endings(finish(engine))

    assert ended["large"].started_at == ended["holds"].at
    assert ended["small"].started_at >= ended["large"].started_at
    assert engine.preemptions == 0


@pytest.mark.parametrize(
    ("priority_scheduling", "victim"),
    [
        pytest.param(False, "second", id="fcfs: who came last"),
        pytest.param(True, "first", id="priority: who is least urgent"),
    ],
)
def test_when_blocks_run_out_someone_is_preempted(priority_scheduling: bool, victim: str) -> None:
    engine = EngineModel(TINY, priority_scheduling=priority_scheduling)
    engine.submit(a_call("first", 60, 60, priority=5), 0.0)
    engine.submit(a_call("second", 60, 60, priority=-5), 0.0)

    events = finish(engine)

    ended = endings(events)
    assert {id: event.preemptions for id, event in ended.items() if event.preemptions} == {
        victim: 1
    }
    assert ended[victim].at == max(event.at for event in events)
    assert len(first_tokens(events)) == sum(isinstance(e, FirstTokenAt) for e in events) == 2
    assert engine.preemptions == 1
    assert engine.kv_used_tokens(1e9) == 0


def test_the_urgent_overtake_the_queue_but_not_the_batch() -> None:
    engine = EngineModel(TINY, priority_scheduling=True)
    for number in range(7):
        engine.submit(a_call(f"batch{number}", 1, 20, priority=1), 0.0)
    engine.advance(0.01)
    engine.submit(a_call("urgent", 1, 1, priority=0), 0.02)

    ended = endings(finish(engine))

    assert ended["urgent"].started_at == ended["batch0"].at
    assert ended["urgent"].at < ended["batch6"].at
    assert engine.preemptions == 0


def test_without_the_policy_priorities_mean_nothing() -> None:
    calls = [a_call(str(number), 30, 20, priority=-number) for number in range(10)]
    ignoring, equal = EngineModel(TINY), EngineModel(TINY)
    for call in calls:
        ignoring.submit(call, 0.0)
        equal.submit(call._replace(priority=0), 0.0)

    assert finish(ignoring) == finish(equal)


# -- the prefix cache


def test_a_shared_prefix_is_computed_once() -> None:
    engine = EngineModel(A100)
    system = (PromptSegment(7, 1000),)
    engine.submit(a_call("cold", 1200, 1, system), 0.0)
    engine.submit(a_call("warm", 1300, 1, system), 10.0)

    events = finish(engine)

    ended = endings(events)
    assert (ended["cold"].cached_tokens, ended["warm"].cached_tokens) == (0, 992)
    assert ended["warm"].at == pytest.approx(10.0 + step_s(A100, 1300 - 992, 992))
    assert (engine.prefix_queries, engine.prefix_hits) == (2500, 992)
    assert engine.unused_cache_blocks == 62


def test_one_token_is_computed_however_much_is_cached() -> None:
    engine = EngineModel(A100)
    whole = (PromptSegment(7, 64),)
    for at in (0.0, 10.0):
        engine.submit(a_call("again", 64, 1, whole), at)
        ended = endings(finish(engine))

    assert ended["again"].cached_tokens == 48


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = EngineModel(A100, prefix_caching=False)
    for at in (0.0, 10.0):
        engine.submit(a_call("again", 64, 1, (PromptSegment(7, 64),)), at)
        ended = endings(finish(engine))

    assert ended["again"].cached_tokens == engine.prefix_queries == engine.unused_cache_blocks == 0


def test_a_prefix_nobody_uses_gives_way_to_work() -> None:
    engine = EngineModel(TINY)
    old = (PromptSegment(7, 80),)
    engine.submit(a_call("old", 81, 1, old), 0.0)
    finish(engine)
    engine.submit(a_call("large", 120, 20), 50.0)
    finish(engine)
    engine.submit(a_call("old", 81, 1, old), 100.0)

    assert endings(finish(engine))["old"].cached_tokens == 20  # (160 - 139 used) in blocks of 4


# -- leaving, refusing, failing


def test_an_aborted_call_is_gone_at_the_next_step() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call("stays", 100, 400), 0.0)
    engine.submit(a_call("leaves", 20_000, 400), 0.0)
    engine.advance(0.5)
    boundary = engine.next_step_at(0.5)
    assert boundary is not None

    assert engine.abort("leaves", 0.5)
    assert not engine.abort("leaves", 0.5)

    engine.advance(boundary)
    assert (engine.running, engine.waiting) == (1, 0)
    assert list(endings(finish(engine))) == ["stays"]


def test_an_aborted_head_of_the_queue_lets_the_next_one_in() -> None:
    engine = EngineModel(TINY)
    engine.submit(a_call("holds", 100, 40), 0.0)
    engine.submit(a_call("large", 90, 5), 0.1)
    engine.submit(a_call("small", 4, 5), 0.2)

    engine.abort("large", 5.0)

    assert 5.0 < endings(finish(engine))["small"].started_at < 5.5


def test_a_full_engine_refuses() -> None:
    engine = EngineModel(TINY, max_queued=2)

    assert [engine.submit(a_call(id), 0.0) for id in "abc"] == [True, True, False]

    engine.abort("a", 0.1)
    assert engine.submit(a_call("c"), 0.2)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(a_call(prompt_tokens=150, output_tokens=12), id="larger than the cache"),
        pytest.param(a_call(prompt_tokens=0), id="no prompt"),
        pytest.param(a_call(output_tokens=0), id="no output"),
        pytest.param(a_call("taken"), id="an id in use"),
    ],
)
def test_what_could_never_run_is_an_error(call: EngineCall) -> None:
    engine = EngineModel(TINY)
    engine.submit(a_call("taken"), 0.0)

    with pytest.raises(ValueError, match=call.id):
        engine.submit(call, 0.0)


def test_a_slowed_engine_takes_longer_from_the_next_step_on() -> None:
    engine = EngineModel(A100)
    engine.submit(a_call(output_tokens=200), 0.0)
    boundary = engine.next_step_at(2.0)
    assert boundary is not None
    tokens = engine.output_tokens("a", boundary)

    engine.slow_down(3.0, 2.0)

    rest_s = sum(step_s(A100, 1, 100 + number) for number in range(tokens - 1, 199))
    assert endings(finish(engine))["a"].at == pytest.approx(boundary + 3 * rest_s)


def test_a_crash_loses_everything_and_the_engine_starts_cold() -> None:
    engine = EngineModel(TINY)
    prefix = (PromptSegment(7, 40),)
    for number in range(8):
        engine.submit(a_call(str(number), 41, 30, prefix), 0.0)
    engine.advance(3.0)

    assert engine.crash(3.1) == [str(number) for number in range(8)]

    assert (engine.next_event_at(), engine.running, engine.waiting) == (None, 0, 0)
    assert engine.kv_usage(3.1) == engine.unused_cache_blocks == 0
    engine.submit(a_call("0", 41, 30, prefix), 4.0)
    assert endings(finish(engine))["0"].cached_tokens == 0


# -- against the slow twin

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


@settings(max_examples=200, deadline=None)
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
    assert (fast.running, fast.waiting, fast.kv_used_tokens(1e9)) == (0, 0, 0)
    assert 0 <= fast.unused_cache_blocks <= fast.total_blocks


@settings(max_examples=50, deadline=None)
@given(workloads(), st.lists(st.integers(1, 2000), max_size=30))
def test_looking_more_often_changes_nothing(actions: list[Action], looks: list[int]) -> None:
    def run(instants: list[float]) -> list[EngineEvent]:
        engine = EngineModel(TINY, priority_scheduling=True)
        events: list[EngineEvent] = []
        agenda = [(at, None) for at in instants] + [(a.at, a) for a in actions]
        for at, action in sorted(agenda, key=lambda entry: entry[0]):
            if action is None:
                events += engine.advance(at)
                assert 0 <= engine.kv_used_tokens(at) <= TINY.kv_tokens
            elif action.abort:
                engine.abort(action.call.id, at)
            else:
                engine.submit(action.call, at)
        return events + finish(engine)

    assert run([look * 0.01 for look in looks]) == run([])


# -- reservation at admission, as TGI does


def a_reserving_call(id: str, prompt_tokens: int, output_tokens: int, reserved: int) -> EngineCall:
    """Return a call that wants room for `reserved` output tokens before it begins."""
    return EngineCall(id, prompt_tokens, output_tokens, reserved_tokens=reserved)


def test_reserved_room_is_kept_from_others_however_short_the_answer_is() -> None:
    engine = EngineModel(TINY)
    engine.submit(a_reserving_call("large", 20, 5, 101), 0.0)
    engine.submit(a_reserving_call("head", 20, 5, 41), 0.0)
    engine.submit(a_reserving_call("behind", 1, 1, 1), 0.0)

    engine.advance(step_s(TINY, 20, 0) / 2)
    assert (engine.running, engine.waiting) == (1, 2)
    assert engine.kv_reserved_tokens(0.1) == 120

    done = endings(finish(engine))
    assert done["head"].started_at == done["large"].at
    assert done["behind"].started_at >= done["head"].started_at


@example([(1, 49, 20), (1, 1, 0), (1, 45, 20), (1, 3, 14), (1, 1, 0)])
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 80), st.integers(0, 20)),
        min_size=1,
        max_size=12,
    )
)
def test_nobody_is_preempted_where_all_reserve(sizes: list[tuple[int, int, int]]) -> None:
    engine = EngineModel(TINY)
    for number, (prompt_tokens, output_tokens, more) in enumerate(sizes):
        call = a_reserving_call(str(number), prompt_tokens, output_tokens, output_tokens + more)
        engine.submit(call, number / 7)
        assert engine.kv_reserved_tokens(number / 7) <= TINY.kv_tokens

    assert len(endings(finish(engine))) == len(sizes)
    assert engine.preemptions == 0
    assert engine.kv_reserved_tokens(1e6) == 0


def test_a_call_that_reserves_more_than_there_is_can_never_run() -> None:
    with pytest.raises(ValueError, match="larger than the KV cache"):
        EngineModel(TINY).submit(a_reserving_call("a", 100, 1, 62), 0.0)
