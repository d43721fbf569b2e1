"""Scheduler: what holds whatever happens, and for how long a call can be passed over."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import QueueLimits
from gateway.core.commands import Command, Settle, Start
from gateway.core.events import Arrived, Finished
from gateway.core.policies import POLICIES, policy_from_name
from gateway.core.queues import FairShares
from gateway.core.scheduler import Scheduler
from gateway.core.types import InferenceRequest, RequestId, TenantId
from tests.builders import a_backend, a_profile, a_request
from tests.core.referee import Referee
from tests.core.scripts import MIXED_POLICIES, Move, Player, limits, scripts


@given(st.sampled_from(MIXED_POLICIES), limits, scripts(max_size=60))
@settings(max_examples=500, deadline=None)
def test_whatever_happens_the_books_balance(
    policy: str, limits: QueueLimits, script: list[Move]
) -> None:
    player = Player(policy, limits)

    player.play(script)
    player.wind_up()


@given(st.sampled_from(MIXED_POLICIES), limits, scripts())
@settings(max_examples=100, deadline=None)
def test_the_same_events_give_the_same_commands(
    policy: str, limits: QueueLimits, script: list[Move]
) -> None:
    runs = [Player(policy, limits) for _ in range(2)]
    for run in runs:
        run.play(script)

    assert runs[0].log == runs[1].log


def serve(
    scheduler: Scheduler, arrivals: list[InferenceRequest], *, always_running: int
) -> list[Command]:
    """Feed arrivals one by one; end the call that has run longest when too many run."""
    referee = Referee(scheduler)
    log: list[Command] = []
    running: list[str] = []

    def note(commands: list[Command]) -> None:
        log.extend(commands)
        running.extend(c.request_id for c in commands if isinstance(c, Start))

    for now, request in enumerate(arrivals):
        note(referee.feed(Arrived(request), float(now)))
        while len(running) > always_running:
            oldest = scheduler.calls[running.pop(0)].request.id
            note(referee.feed(Finished(oldest, 10), float(now) + 0.5))
    now = len(arrivals)
    while running:
        oldest = scheduler.calls[running.pop(0)].request.id
        note(referee.feed(Finished(oldest, 10), float(now)))
        now += 1
    return log


def start_order(log: list[Command]) -> list[RequestId]:
    """Return the ids in the order in which they were started."""
    return [c.request_id for c in log if isinstance(c, Start)]


def test_a_large_call_is_passed_by_small_ones_only_so_often() -> None:
    """The bound under hexsage: max_passed calls whose key is later than its own, and no more."""
    policy = replace(policy_from_name("hexsage"), max_passed=10, budget_share=1.0)
    scheduler = Scheduler([a_backend("a", profile=a_profile(kv_tokens=1000))], policy)
    small = [a_request(f"s{n}", prompt_tokens=190, deadline_at=900.0 + n) for n in range(300)]
    large = a_request("large", prompt_tokens=900, deadline_at=500.0)
    arrivals = [*small[:20], large, *small[20:]]

    log = serve(scheduler, arrivals, always_running=4)

    order = start_order(log)
    key = {c.request_id: c.decision.order_key for c in log if isinstance(c, Start)}
    large_key = key[large.id]
    before = order[: order.index(large.id)]
    passed_by = [name for name in before[20:] if key[name] > large_key]
    assert len(passed_by) == 10
    assert len(order) == len(arrivals)


def test_a_call_held_back_for_a_better_backend_is_not_held_for_ever() -> None:
    policy = replace(policy_from_name("hexsage"), max_passed=10)
    fast = a_backend("a", max_in_flight=1)
    slow = a_backend("b", profile=a_profile(slowness=6), max_in_flight=1)
    scheduler = Scheduler([fast, slow], policy)
    held = a_request("held", answer_tokens=300)
    short = [a_request(f"s{n}", answer_tokens=2) for n in range(100)]

    log = serve(scheduler, [*short[:2], held, *short[2:]], always_running=1)

    order = start_order(log)
    assert order.index(held.id) < 50
    assert len(order) == 101


@given(
    st.lists(
        st.tuples(st.sampled_from([10, 100, 400, 900]), st.integers(1, 300), st.sampled_from("ab")),
        max_size=40,
    ),
    st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("policy", POLICIES)
def test_with_arrivals_that_end_every_call_is_served(
    policy: str, calls: list[tuple[int, int, str]], always_running: int
) -> None:
    scheduler = Scheduler(
        [
            a_backend("a", profile=a_profile(kv_tokens=1000)),
            a_backend("b", profile=a_profile(slowness=20, kv_tokens=1500), max_in_flight=2),
        ],
        policy_from_name(policy),
    )
    arrivals = [
        a_request(f"r{n}", prompt_tokens=prompt, answer_tokens=answer, tenant=TenantId(tenant))
        for n, (prompt, answer, tenant) in enumerate(calls)
    ]

    log = serve(scheduler, arrivals, always_running=always_running)

    assert sorted(start_order(log)) == sorted(request.id for request in arrivals)


@pytest.mark.parametrize("policy", ["hexsage", "edf", "sagesched", "hexgen"])
def test_two_saturating_tenants_are_served_by_their_weights(policy: str) -> None:
    scheduler = Scheduler(
        [a_backend("a", max_in_flight=2)],
        policy_from_name(policy),
        shares=FairShares({"gold": 3.0}),
    )
    arrivals = [
        a_request(f"{name}{n}", answer_tokens=10 + n % 7, tenant=TenantId(name))
        for n in range(300)
        for name in ("gold", "iron")
    ]

    log = serve(scheduler, arrivals, always_running=2)

    # Both still have calls waiting while the first two thirds are served.
    served: Counter[str] = Counter()
    for settled in [c for c in log if isinstance(c, Settle)][:380]:
        served[settled.tenant] += 1
    assert served["gold"] / served["iron"] == pytest.approx(3.0, rel=0.1)
