"""Placement: binding, holding, skipping, budgets, and who is kept waiting."""

from dataclasses import replace

import pytest

from gateway.core.call import Call
from gateway.core.decisions import predicted_execution_s
from gateway.core.fleet import Fleet
from gateway.core.placement import Placement
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.policies.base import Policy
from gateway.core.queues import FairShares
from gateway.core.types import Backend, BackendId, BackendState
from tests.builders import a_backend, a_call, a_profile, a_request

A, B = BackendId("a"), BackendId("b")
FULL_BUDGET = PolicySettings(budget_share=1.0, alpha=0.5)


def a_placement(policy: str | Policy, *backends: Backend) -> Placement:
    """A placement over these backends."""
    if isinstance(policy, str):
        policy = policy_from_name(policy, FULL_BUDGET)
    shares = FairShares()
    return Placement(Fleet(backends, shares), policy, shares)


def load_of(placement: Placement, backend_id: BackendId) -> str:
    """The ids that run on a backend, in order."""
    return " ".join(placement._fleet.loads[backend_id].running)


def add(placement: Placement, *calls: Call, now: float = 0.0) -> list[str]:
    """Let calls wait, one after the other; return those that start."""
    return [started.id for call in calls for started in placement.add([call], now)]


def end(placement: Placement, call: Call, now: float = 0.0) -> list[str]:
    """Let a running call end; return those that start."""
    load = call.load
    assert load is not None
    load.stop(call)
    return [started.id for started in placement.room_changed(load, now)]


def sized(
    name: str,
    prompt_tokens: int = 100,
    answer_tokens: int = 10,
    deadline_at: float | None = 1000.0,
    eligible: frozenset[BackendId] | None = None,
) -> Call:
    """A call of a known size."""
    return a_call(
        request=a_request(
            name,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            deadline_at=deadline_at,
            eligible=eligible,
        )
    )


# The KV budget


@pytest.mark.parametrize("policy", ["hexsage", "edf", "hexgen"])
def test_calls_are_kept_back_that_do_not_fit_the_kv_budget(policy: str) -> None:
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))
    calls = [sized(f"r{n}", prompt_tokens=490) for n in range(3)]

    assert add(placement, *calls) == ["r0", "r1"]
    assert end(placement, calls[0]) == ["r2"]


def test_a_share_of_the_kv_cache_may_be_left_free() -> None:
    policy = policy_from_name("hexsage", PolicySettings(budget_share=0.5))
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))

    assert add(placement, sized("a", 240), sized("b", 240), sized("c", 240)) == ["a", "b"]


def test_a_call_larger_than_the_budget_runs_alone() -> None:
    placement = a_placement("hexsage", a_backend("a", profile=a_profile(kv_tokens=1000)))
    large, small = sized("large", 900, 500), sized("small")

    assert add(placement, large, small) == ["large"]
    assert end(placement, large) == ["small"]


@pytest.mark.parametrize(
    ("policy", "priority_scheduling", "kept"),
    [
        pytest.param("least_backlog+fcfs", False, 0, id="fcfs hands over as they come"),
        pytest.param("hexgen", True, 0, id="an engine that can be told the order keeps it"),
        pytest.param("hexgen", False, 1, id="one that cannot gets what fits"),
        pytest.param("hexsage", True, 1, id="late binding waits in any case"),
    ],
)
def test_where_calls_wait(policy: str, priority_scheduling: bool, kept: int) -> None:
    backend = a_backend(
        "a", profile=a_profile(kv_tokens=1000), priority_scheduling=priority_scheduling
    )
    placement = a_placement(policy, backend)

    assert len(add(placement, *(sized(f"r{n}", 490) for n in range(3)))) == 3 - kept


@pytest.mark.parametrize("policy", ["least_backlog+fcfs", "hexgen", "hexsage"])
def test_the_hard_cap_holds_for_everyone(policy: str) -> None:
    placement = a_placement(policy, a_backend("a", max_in_flight=2, priority_scheduling=True))

    assert len(add(placement, *(sized(f"r{n}") for n in range(5)))) == 2


# Binding


def test_a_call_bound_at_arrival_stays_with_its_backend() -> None:
    placement = a_placement(
        "hexgen", a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    )
    calls = [sized(f"r{n}") for n in range(4)]
    assert add(placement, *calls) == ["r0", "r1"]
    bound_to_a = next(call for call in calls[2:] if call.load is not None and call.load.id == A)

    assert end(placement, calls[1]) == [call.id for call in calls[2:] if call is not bound_to_a]
    assert bound_to_a.load is not None
    assert bound_to_a.load.id == A


def test_a_call_bound_late_goes_wherever_there_is_room_first() -> None:
    placement = a_placement(
        "hexsage", a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    )
    calls = [sized(f"r{n}") for n in range(3)]
    add(placement, *calls)

    assert end(placement, calls[1]) == ["r2"]
    assert load_of(placement, B) == "r2"


# Hold and skip


@pytest.mark.parametrize(
    ("slowness", "is_held"),
    [pytest.param(4.9, False, id="bad"), pytest.param(5.1, True, id="too bad")],
)
def test_a_call_is_held_rather_than_sent_to_an_idle_backend_that_is_too_slow(
    slowness: float, is_held: bool
) -> None:
    """hold_idle = 5: the idle backend's score against the best one's, which is full."""
    fast = a_backend("a", max_in_flight=1, profile=a_profile())
    slow = a_backend("b", profile=a_profile(slowness=slowness))
    placement = a_placement("hexsage", fast, slow)
    # The fast backend's score counts the call that runs there; make that next to nothing.
    add(placement, sized("running", prompt_tokens=1, answer_tokens=1))

    started = add(placement, sized("r", prompt_tokens=1, answer_tokens=1000))

    assert (started == []) is is_held


def test_a_backend_that_has_work_is_held_to_a_stricter_ratio() -> None:
    fast = a_backend("a", max_in_flight=1)
    slow = a_backend("b", profile=a_profile(slowness=3.5))
    placement = a_placement("hexsage", fast, slow)
    tiny = [sized(f"t{n}", prompt_tokens=1, answer_tokens=1) for n in range(2)]
    add(placement, tiny[0])
    assert add(placement, tiny[1]) == ["t1"]  # 3.5 < 5: idle takes it
    assert load_of(placement, B) == "t1"

    # 3.5 > 2.5, and b is not idle any more.
    assert add(placement, sized("r", prompt_tokens=1, answer_tokens=1000)) == []


def test_a_held_call_may_be_passed_by_those_behind_it() -> None:
    fast = a_backend("a", max_in_flight=1)
    slow = a_backend("b", profile=a_profile(slowness=20))
    placement = a_placement("hexsage", fast, slow)
    add(placement, sized("running"))
    assert add(placement, sized("held", answer_tokens=100, deadline_at=1.0)) == []

    only_slow = sized("only slow", deadline_at=2.0, eligible=frozenset({B}))
    assert add(placement, only_slow) == ["only slow"]


@pytest.mark.parametrize(("skip", "passes"), [(2, True), (1, False)])
def test_only_so_many_calls_can_be_passed_at_once(skip: int, passes: bool) -> None:
    policy = replace(policy_from_name("hexsage", FULL_BUDGET), skip=skip)
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))
    add(placement, sized("running", 500))
    for number in range(2):
        assert add(placement, sized(f"large{number}", 900, deadline_at=1.0 + number)) == []

    assert add(placement, sized("small", 100, deadline_at=50.0)) == (["small"] if passes else [])


@pytest.mark.parametrize("policy", ["edf", "srpt", "llf", "sagesched"])
def test_policies_that_do_not_hold_keep_strict_order(policy: str) -> None:
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))
    add(placement, sized("running", 500))
    assert add(placement, sized("first", 900, answer_tokens=5, deadline_at=1.0)) == []

    assert add(placement, sized("second", 901, answer_tokens=6, deadline_at=2.0)) == []


def test_a_call_passed_too_often_is_held_no_longer() -> None:
    policy = replace(policy_from_name("hexsage", FULL_BUDGET), max_passed=2)
    fast = a_backend("a", max_in_flight=1)
    slow = a_backend("b", profile=a_profile(slowness=20), max_in_flight=1)
    placement = a_placement(policy, fast, slow)
    add(placement, sized("running", answer_tokens=50))
    held = sized("held", answer_tokens=100, deadline_at=1.0)
    assert add(placement, held) == []

    for number in range(2):
        passing = sized(f"p{number}", deadline_at=2.0, eligible=frozenset({B}))
        assert add(placement, passing) == [passing.id]
        assert held.passed == number + 1
        started = end(placement, passing)

    assert started == ["held"]
    assert load_of(placement, B) == "held"


def test_backends_are_kept_free_for_a_call_that_was_passed_too_often() -> None:
    policy = replace(policy_from_name("hexsage", FULL_BUDGET), max_passed=1)
    profile = a_profile(kv_tokens=1000)
    placement = a_placement(
        policy, a_backend("a", profile=profile), a_backend("b", models=frozenset({"m2"}))
    )
    running = sized("running", 500)
    add(placement, running)
    large = sized("large", 900, deadline_at=1.0)
    add(placement, large)
    passing = sized("passing", 100, deadline_at=2.0)
    assert add(placement, passing) == ["passing"]

    assert add(placement, sized("too late to pass", 100, deadline_at=3.0)) == []
    elsewhere = a_call(request=a_request("elsewhere", model="m2"))
    assert add(placement, elsewhere) == ["elsewhere"]

    assert end(placement, running) == []
    assert end(placement, passing) == ["large"]
    assert end(placement, large) == ["too late to pass"]


def test_a_call_that_was_passed_too_often_goes_before_more_urgent_ones_that_came_since() -> None:
    policy = replace(policy_from_name("hexsage", FULL_BUDGET), max_passed=1, skip=1)
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))
    running = sized("running", 500)
    large = sized("large", 900, deadline_at=50.0)
    passing = sized("passing", 100, deadline_at=60.0)
    assert add(placement, running, large, passing) == ["running", "passing"]
    for number in range(3):
        assert add(placement, sized(f"urgent{number}", 100, deadline_at=1.0 + number)) == []

    assert end(placement, running) == []
    assert end(placement, passing) == ["large"]


def test_when_a_call_that_was_passed_too_often_leaves_others_may_go() -> None:
    policy = replace(policy_from_name("hexsage", FULL_BUDGET), max_passed=1)
    placement = a_placement(policy, a_backend("a", profile=a_profile(kv_tokens=1000)))
    large = sized("large", 900, deadline_at=1.0)
    add(placement, sized("running", 500), large, sized("passing", 100, deadline_at=2.0))
    only_a = sized("blocked", 100, deadline_at=3.0, eligible=frozenset({A}))
    assert add(placement, only_a) == []

    placement.remove(large)

    assert [call.id for call in placement.fill_gaps(0.0)] == ["blocked"]


# Pools


def test_a_call_that_waits_for_one_backend_does_not_stop_one_that_can_use_another() -> None:
    placement = a_placement("edf", a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1))
    add(placement, sized("running", eligible=frozenset({A})))
    assert add(placement, sized("waits for a", deadline_at=1.0, eligible=frozenset({A}))) == []

    assert add(placement, sized("any", deadline_at=2.0)) == ["any"]
    assert load_of(placement, B) == "any"


def test_where_pools_overlap_the_most_urgent_call_goes_first() -> None:
    placement = a_placement("edf", a_backend("a", max_in_flight=1))
    two = a_backend("b", models=frozenset({"m1", "m2"}), max_in_flight=1)
    placement._fleet.change(two, BackendState.UP)
    running = a_call(request=a_request("running", model="m2"))
    add(placement, sized("on a", eligible=frozenset({A})), running)
    for name, model, deadline_at in (("relaxed", "m1", 9.0), ("urgent", "m2", 5.0)):
        request = a_request(name, model=model, deadline_at=deadline_at)
        assert add(placement, a_call(request=request)) == []

    assert end(placement, running) == ["urgent"]


@pytest.mark.parametrize("policy", ["round_robin+fcfs", "round_robin+edf"])
def test_models_that_alternate_each_see_every_backend_in_turn(policy: str) -> None:
    both = frozenset({"m1", "m2"})
    placement = a_placement(
        policy,
        a_backend("a", models=both),
        a_backend("b", models=both),
        a_backend("c", models=frozenset({"m1"})),
    )
    for number in range(12):
        request = a_request(f"r{number}", model=("m1", "m2")[number % 2])
        add(placement, a_call(request=request))

    loads = placement._fleet.loads
    on_a = [call.request.model for call in loads[A].running.values()]
    on_b = [call.request.model for call in loads[B].running.values()]
    assert (on_a.count("m2"), on_b.count("m2")) == (3, 3)
    assert (on_a.count("m1"), on_b.count("m1")) == (2, 2)


@pytest.mark.parametrize("policy", ["edf", "hexsage"])
def test_a_call_that_waits_for_another_backend_than_the_one_that_failed_it_stops_nobody(
    policy: str,
) -> None:
    placement = a_placement(
        policy, a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    )
    running = sized("running"), sized("running too")
    add(placement, *running)
    for number in range(8):
        failed = sized(f"failed on a {number}", deadline_at=1.0)
        failed.tried.add(A)
        add(placement, failed)
    assert add(placement, sized("any", deadline_at=2.0)) == []

    assert end(placement, running[0]) == ["any"]


# Predictions


def test_the_predicted_time_counts_what_runs_there() -> None:
    fleet = Fleet([a_backend("a")], FairShares())
    load = fleet.loads[A]
    running = sized("running", prompt_tokens=500)
    load.bind(running)
    load.start(running)

    # 600 prompt tokens are ahead of its first token, 9 steps of 0.1 s follow.
    assert predicted_execution_s(load, sized("r", 100, 10)) == pytest.approx(0.6 + 0.9)
    load.prefill_done(running)
    assert predicted_execution_s(load, sized("r", 100, 10)) == pytest.approx(0.1 + 0.9)
