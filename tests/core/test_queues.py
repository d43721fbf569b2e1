"""ReadyQueue: order, removal, fair shares, bounds."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import queues
from gateway.core.call import Call
from gateway.core.queues import FairShares, ReadyQueue
from tests.builders import a_call


def drained(queue: ReadyQueue) -> list[str]:
    """Take everything out, first to go first."""
    ids = []
    while queue:
        call = queue.first(1)[0]
        queue.remove(call)
        ids.append(call.id)
    return ids


def served_by_tenant(
    queue: ReadyQueue, make: Callable[[str, int], Call], tenants: Sequence[str], rounds: int
) -> Counter[str]:
    """Serve one call at a time while every tenant always has some waiting; return seconds."""
    numbers = count()
    for tenant in tenants:
        for _ in range(5):
            queue.push(make(tenant, next(numbers)))
    served: Counter[str] = Counter()
    for _ in range(rounds):
        call = queue.first(1)[0]
        queue.remove(call)
        queue.charge(call, call.charged_s)
        tenant = call.request.tenant
        served[tenant] += int(call.charged_s)
        queue.push(make(tenant, next(numbers)))
    return served


# Order


def test_the_lowest_key_goes_first_and_arrival_decides_ties() -> None:
    queue = ReadyQueue()
    for name, key in (("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 3.0)):
        queue.push(a_call(name, order_key=key))

    assert [call.id for call in queue.first(3)] == ["b", "c", "a"]
    assert drained(queue) == ["b", "c", "a", "d"]


def test_a_clients_priority_goes_before_the_key() -> None:
    queue = ReadyQueue()
    queue.push(a_call("late but urgent", order_key=9.0, priority=-1))
    queue.push(a_call("early", order_key=1.0))
    queue.push(a_call("early but patient", order_key=0.0, priority=1))

    assert drained(queue) == ["late but urgent", "early", "early but patient"]


def test_a_clients_priority_gains_nothing_against_other_tenants() -> None:
    queue = ReadyQueue()
    queue.push(a_call("modest", tenant="a"))
    queue.push(a_call("pushy", tenant="b", priority=-5))

    assert drained(queue) == ["modest", "pushy"]


def test_looking_does_not_take() -> None:
    queue = ReadyQueue()
    for name in "abc":
        queue.push(a_call(name))

    assert queue.first(2) == queue.first(2)
    assert len(queue) == 3


def test_an_id_that_comes_back_does_not_inherit_its_old_place() -> None:
    queue = ReadyQueue()
    first = a_call("x", order_key=0.0)
    queue.push(first)
    queue.push(a_call("y", order_key=1.0))
    queue.remove(first)
    queue.push(a_call("x", order_key=2.0))

    assert drained(queue) == ["y", "x"]


def test_a_call_that_is_queued_again_keeps_its_place() -> None:
    queue = ReadyQueue()
    first, second = a_call("first", order_key=1.0), a_call("second", order_key=1.0)
    queue.push(first)
    queue.push(second)
    queue.remove(first)
    queue.push(first)

    assert drained(queue) == ["first", "second"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # tenant
            st.integers(0, 1),  # flow
            st.integers(-1, 1),  # priority
            st.integers(0, 5),  # key
            st.booleans(),  # remove one first?
            st.integers(0, 50),  # which
        ),
        max_size=120,
    )
)
@settings(max_examples=100, deadline=None)
def test_each_flow_comes_out_sorted_and_nothing_is_lost(
    script: list[tuple[int, int, int, int, bool, int]],
) -> None:
    queue = ReadyQueue()
    waiting: dict[str, Call] = {}
    for number, (tenant, flow, priority, key, removes, which) in enumerate(script):
        if removes and waiting:
            gone = list(waiting.values())[which % len(waiting)]
            queue.remove(waiting.pop(gone.id))
            queue.charge(gone, float(which) - 10)
        call = a_call(
            f"r{number}", tenant=f"t{tenant}", flow=f"f{flow}", priority=priority, order_key=key
        )
        queue.push(call)
        waiting[call.id] = call
        assert len(queue) == len(waiting)
        head = queue.first(4)
        assert len(head) == min(4, len(waiting)) == len({call.id for call in head})

    order = drained(queue)

    assert sorted(order) == sorted(waiting)
    for tenant in range(4):
        for flow in range(2):
            mine = [
                waiting[name]
                for name in order
                if waiting[name].request.tenant == f"t{tenant}"
                and waiting[name].request.flow == f"f{flow}"
            ]
            keys = [(c.request.priority, c.order_key, c.sequence) for c in mine]
            assert keys == sorted(keys)


# Fair shares


def test_two_saturating_tenants_share_by_their_weights() -> None:
    queue = ReadyQueue(FairShares({"a": 3.0}))

    served = served_by_tenant(
        queue, lambda tenant, n: a_call(f"r{n}", tenant=tenant, charged_s=1 + n % 4), "ab", 400
    )

    assert served["a"] / served["b"] == pytest.approx(3.0, rel=0.05)


def test_shares_are_of_seconds_not_of_calls() -> None:
    queue = ReadyQueue()

    served = served_by_tenant(
        queue,
        lambda tenant, n: a_call(f"r{n}", tenant=tenant, charged_s=20 if tenant == "long" else 1),
        ["long", "short"],
        1000,
    )

    assert served["long"] / served["short"] == pytest.approx(1.0, rel=0.05)


def test_a_tenant_gains_nothing_by_naming_a_flow_a_call() -> None:
    queue = ReadyQueue()

    served = served_by_tenant(
        queue,
        lambda tenant, n: a_call(
            f"r{n}", tenant=tenant, flow=f"f{n}" if tenant == "many" else "", charged_s=1
        ),
        ["one", "many"],
        400,
    )

    assert served["many"] / served["one"] == pytest.approx(1.0, rel=0.05)


def test_flows_of_one_tenant_share_equally() -> None:
    queue = ReadyQueue()
    numbers = count()

    def push(flow: str) -> None:
        queue.push(a_call(f"r{next(numbers)}", flow=flow, charged_s=1))

    for _ in range(50):
        push("greedy")
    push("modest")
    served: Counter[str] = Counter()
    for _ in range(40):
        call = queue.first(1)[0]
        queue.remove(call)
        queue.charge(call, call.charged_s)
        served[call.request.flow] += 1
        push(call.request.flow)

    assert served["modest"] == pytest.approx(20, abs=1)


def test_idleness_is_not_saved_up() -> None:
    queue = ReadyQueue()
    for number in range(40):
        queue.push(a_call(f"busy{number}", tenant="busy", charged_s=1))
    for _ in range(20):
        call = queue.first(1)[0]
        queue.remove(call)
        queue.charge(call, 1.0)
    for number in range(20):
        queue.push(a_call(f"new{number}", tenant="new", charged_s=1))

    served: Counter[str] = Counter()
    for _ in range(10):
        call = queue.first(1)[0]
        queue.remove(call)
        queue.charge(call, 1.0)
        served[call.request.tenant] += 1

    assert served == {"busy": 5, "new": 5}


def test_what_was_charged_too_much_is_given_back() -> None:
    queue = ReadyQueue()
    cheap, dear = a_call("a", tenant="a"), a_call("b", tenant="b")
    for call in (cheap, dear):
        queue.push(call)
        queue.push(a_call(f"{call.id}2", tenant=call.request.tenant))
        queue.remove(call)
        queue.charge(call, 10.0)
    queue.charge(cheap, -9.0)

    assert drained(queue) == ["a2", "b2"]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of tenant 'a'"):
        FairShares({"a": weight})


# Bounds


def test_removed_calls_are_not_kept() -> None:
    queue = ReadyQueue()
    queue.push(a_call("stays"))
    for number in range(2000):
        call = a_call(f"r{number}", order_key=1.0)
        queue.push(call)
        queue.remove(call)

    flows = [f for t in queue._tenants.shares.values() for f in t.flows.shares.values()]
    assert sum(len(flow.heap) for flow in flows) < 200


def test_tenants_that_have_nothing_waiting_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_IDLE_SHARES", 10)
    queue = ReadyQueue()
    queue.push(a_call("stays", tenant="stays"))
    for number in range(200):
        call = a_call(f"r{number}", tenant=f"t{number % 100}", flow=f"f{number}")
        queue.push(call)
        queue.remove(call)
        queue.charge(call, 5.0)

    assert len(queue._tenants.shares) <= 20
    assert drained(queue) == ["stays"]


def test_a_turn_costs_the_same_with_many_tenants() -> None:
    """Counted, not timed: how many shares a look at the queue touches."""
    queue = ReadyQueue()
    for number in range(3000):
        queue.push(a_call(f"r{number}", tenant=f"t{number}"))
    for _ in range(500):
        call = queue.first(7)[0]
        queue.remove(call)
        queue.charge(call, 1.0)

    assert len(queue._tenants._heap) <= 2 * len(queue) + queues.SLACK + 1


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=120), st.integers(1, 120))
def test_the_first_calls_are_those_of_a_sorted_list(
    script: list[tuple[int, bool]], wanted: int
) -> None:
    """However many are asked for, and whatever has come and gone between two questions."""
    queue = ReadyQueue()
    waiting: list[Call] = []
    for number, (key, leaves) in enumerate(script):
        call = a_call(f"r{number}", order_key=float(key))
        queue.push(call)
        waiting.append(call)
        waiting.sort(key=lambda call: (call.order_key, call.sequence))
        assert queue.first(3) == waiting[:3]
        if leaves:
            queue.remove(waiting.pop(key % len(waiting)))

        assert queue.first(wanted) == waiting[:wanted]
