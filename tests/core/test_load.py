"""BackendLoad: sums of what a backend was given, and what still fits."""

import pytest

from gateway.core.breaker import HealthRules
from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.types import BackendState, PromptSegment
from tests.builders import a_backend, a_call, a_profile, a_request

TEMPLATE = (PromptSegment(key=1, tokens=60),)


def start(load: BackendLoad, call: Call) -> Call:
    """Bind a call and let it enter the engine."""
    load.bind(call)
    load.start(call)
    return call


def sized(
    name: str, prompt_tokens: int, answer_tokens: int, prefix: tuple[PromptSegment, ...] = ()
) -> Call:
    """A call of a known size."""
    return a_call(
        request=a_request(
            name, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens, prefix=prefix
        )
    )


def test_a_running_call_counts_with_its_prompt_and_its_predicted_answer() -> None:
    load = BackendLoad(a_backend())

    start(load, sized("r", 100, 10))

    assert load.pending_prefill_tokens == 100
    assert load.context_tokens == load.reserved_tokens == 110
    assert load.backlog_s == pytest.approx(0.1 + 9 * 0.1)
    assert (load.in_flight, load.pending) == (1, 1)


def test_a_bound_call_counts_as_backlog_only() -> None:
    load = BackendLoad(a_backend())
    call = sized("r", 100, 10)

    load.bind(call)
    load.bound.push(call)

    assert load.backlog_s == pytest.approx(1.0)
    assert load.reserved_tokens == load.pending_prefill_tokens == 0
    assert (load.in_flight, load.pending) == (0, 1)


def test_a_prompt_that_is_read_is_ahead_of_nobody() -> None:
    load = BackendLoad(a_backend())
    call = start(load, sized("r", 1000, 10))

    load.prefill_done(call)

    assert load.pending_prefill_tokens == 0
    assert load.backlog_s == pytest.approx(9 * 0.1)
    load.prefill_done(call)
    assert load.backlog_s == pytest.approx(9 * 0.1)


def test_progress_replaces_what_was_predicted() -> None:
    load = BackendLoad(a_backend())
    call = start(load, sized("r", 100, 10))
    load.prefill_done(call)

    load.progress(call, remaining_tokens=30, seen_tokens=20)

    assert load.context_tokens == load.reserved_tokens == 150
    assert load.backlog_s == pytest.approx(30 * 0.1)


def test_what_a_call_added_is_taken_away_when_it_leaves() -> None:
    load = BackendLoad(a_backend())
    first, second = start(load, sized("a", 100, 10)), start(load, sized("b", 300, 7, TEMPLATE))
    load.progress(first, remaining_tokens=3, seen_tokens=90)
    load.prefill_done(second)

    load.stop(first)
    assert load.reserved_tokens == load.context_tokens == 307
    load.stop(second)

    assert load.reserved_tokens == load.context_tokens == load.pending_prefill_tokens == 0
    assert load.backlog_s == 0.0
    assert first.load is None


def test_a_shared_prefix_takes_room_once_and_is_read_once() -> None:
    load = BackendLoad(a_backend())
    start(load, sized("a", 100, 10, TEMPLATE))
    assert load.reserved_tokens == 110

    second = sized("b", 100, 10, TEMPLATE)
    assert load.fresh_tokens(second) == 40
    start(load, second)

    assert load.reserved_tokens == 110 + 50
    assert load.pending_prefill_tokens == 100 + 40


def test_a_fully_cached_prompt_still_computes_a_token() -> None:
    load = BackendLoad(a_backend())
    start(load, sized("a", 60, 10, TEMPLATE))

    assert load.fresh_tokens(sized("b", 60, 10, TEMPLATE)) == 1


def has_room(load: BackendLoad, call: Call, budget_share: float) -> bool:
    """Whether the call fits what is left of the budget."""
    return load.needed_tokens(call) <= load.free_tokens(budget_share)


@pytest.mark.parametrize(
    ("prompt_tokens", "prefix", "share", "fits"),
    [
        pytest.param(880, (), 1.0, True, id="fills the cache to the last token"),
        pytest.param(881, (), 1.0, False, id="a token too many"),
        pytest.param(435, (), 0.555, True, id="within a share of it"),
        pytest.param(436, (), 0.555, False, id="above that share"),
        pytest.param(940, TEMPLATE, 1.0, True, id="the template is there already"),
        pytest.param(941, TEMPLATE, 1.0, False, id="the template helps no further"),
    ],
)
def test_room_is_measured_in_kv_tokens(
    prompt_tokens: int, prefix: tuple[PromptSegment, ...], share: float, fits: bool
) -> None:
    load = BackendLoad(a_backend(profile=a_profile(kv_tokens=1000)))
    start(load, sized("running", 100, 10, TEMPLATE))

    assert has_room(load, sized("r", prompt_tokens, 10, prefix), share) is fits


def test_a_backend_that_is_just_back_has_a_share_of_its_budget() -> None:
    load = BackendLoad(a_backend(profile=a_profile(kv_tokens=1000)))
    start(load, sized("running", 90, 10))
    load.breaker.warm_up(0.0, HealthRules(ramp_s=10.0))
    load.breaker.look(3.0, HealthRules(ramp_s=10.0))
    assert load.breaker.ramp == 0.4

    assert load.free_tokens(0.5) == 0.4 * 0.5 * 1000 - 100
    assert has_room(load, sized("fits", 90, 10), 0.5)
    assert not has_room(load, sized("does not", 91, 10), 0.5)


def test_an_idle_backend_has_room_for_anything() -> None:
    load = BackendLoad(a_backend(profile=a_profile(kv_tokens=1000)))

    assert has_room(load, sized("r", 990, 5000), 0.5)


@pytest.mark.parametrize(("max_in_flight", "max_num_seqs"), [(2, 256), (None, 2), (9, 2)])
def test_there_is_no_room_beyond_the_hard_caps(
    max_in_flight: int | None, max_num_seqs: int
) -> None:
    profile = a_profile(max_num_seqs=max_num_seqs)
    load = BackendLoad(a_backend(profile=profile, max_in_flight=max_in_flight))
    start(load, sized("a", 10, 1))
    assert has_room(load, sized("r", 10, 1), 1.0)

    start(load, sized("b", 10, 1))

    assert not has_room(load, sized("r", 10, 1), 1.0)


def test_who_comes_back_from_the_dead_has_an_empty_cache() -> None:
    load = BackendLoad(a_backend())
    load.stop(start(load, sized("a", 100, 10, TEMPLATE)))
    again = sized("b", 100, 10, TEMPLATE)
    assert load.fresh_tokens(again) == 40

    load.configure(load.backend, BackendState.DRAINING)
    assert load.fresh_tokens(again) == 40
    load.configure(load.backend, BackendState.DOWN)

    assert load.fresh_tokens(again) == 100


def test_all_work_ever_given_only_grows() -> None:
    load = BackendLoad(a_backend())
    for _ in range(3):
        load.stop(start(load, sized("a", 100, 10)))

    assert load.assigned_s == pytest.approx(3.0)
    assert load.backlog_s == 0.0
