"""Orders: keys worked out by hand, and what they mean for who goes first."""

from collections.abc import Callable

import pytest

from gateway.core.call import Call
from gateway.core.gittins import attention_cost, gittins_index
from gateway.core.lengths import LengthDistribution
from gateway.core.policies.base import Order
from gateway.core.policies.orders import (
    ASSUMED_SLO_S,
    WORKFLOW_SCALE,
    EarliestDeadline,
    Fcfs,
    GittinsFirst,
    LeastLaxity,
    ShortestFirst,
    Urgency,
    VirtualDeadline,
)
from gateway.core.types import InferenceRequest
from gateway.core.workflow import Workflows
from tests.builders import a_call, a_request, a_workflow

SURE = LengthDistribution.point(100)
RISKY = LengthDistribution.from_samples([10, 10, 10, 370])
"""The same mean, but probably short."""


def a_costed_call(
    request: InferenceRequest | None = None,
    *,
    arrived_at: float = 50.0,
    prefill_s: float = 1.0,
    step_s: float = 0.1,
    kv_tokens: int = 1000,
) -> Call:
    """A call with its costs on the average backend."""
    call = a_call(request=request or a_request(output=SURE), arrived_at=arrived_at)
    call.reference_prefill_s = prefill_s
    call.reference_step_s = step_s
    call.reference_kv_tokens = kv_tokens
    call.reference_s = prefill_s + step_s * (call.output_tokens - 1)
    call.remaining_s = call.total_s = call.reference_s
    return call


def with_deadline(at: float) -> Call:
    """A call due at an instant."""
    return a_costed_call(a_request(output=SURE, deadline_at=at))


def with_rest(remaining_s: float) -> Call:
    """A call due at 200 with so much to come."""
    call = with_deadline(200.0)
    call.remaining_s = remaining_s
    return call


def with_budget(budget_s: float | None, backlog_s: float) -> Call:
    """A call that became ready at 50."""
    call = a_costed_call()
    call.budget_s, call.backlog_s = budget_s, backlog_s
    return call


@pytest.mark.parametrize(
    ("order", "make", "key"),
    [
        pytest.param(Fcfs(), a_costed_call, 50.0, id="fcfs: as they came"),
        pytest.param(EarliestDeadline(), lambda: with_deadline(80.0), 80.0, id="edf"),
        pytest.param(
            EarliestDeadline(), a_costed_call, 50.0 + ASSUMED_SLO_S, id="edf without a deadline"
        ),
        pytest.param(LeastLaxity(), lambda: with_rest(30.0), 170.0, id="llf: 30 s are to come"),
        pytest.param(
            LeastLaxity(), a_costed_call, 50.0 + ASSUMED_SLO_S - 10.9, id="llf without a deadline"
        ),
        pytest.param(ShortestFirst(), a_costed_call, 1 + 0.1 * 99, id="srpt"),
        pytest.param(
            Urgency(),
            lambda: with_budget(20.0, 3.0),
            50.0 + 20.0 - 3.0,
            id="urgency: ready + t_SLO - t(q,m)",
        ),
        pytest.param(
            Urgency(),
            lambda: with_budget(None, 3.0),
            50.0 + ASSUMED_SLO_S - 3.0,
            id="urgency without a budget",
        ),
        pytest.param(VirtualDeadline(7.0), lambda: with_deadline(80.0), 80.0, id="deadline"),
    ],
)
def test_keys_by_hand(order: Order, make: Callable[[], Call], key: float) -> None:
    assert order.key(make()) == pytest.approx(key)


def test_gittins_is_the_index_of_the_attention_cost() -> None:
    call = a_costed_call(a_request(prompt_tokens=300, output=RISKY))

    assert GittinsFirst().key(call) == gittins_index(RISKY, attention_cost(300))


def test_gittins_prefers_a_probably_short_answer_where_srpt_sees_no_difference() -> None:
    sure = a_costed_call(a_request(output=LengthDistribution.point(RISKY.mean_tokens)))
    risky = a_costed_call(a_request(output=RISKY))

    assert ShortestFirst().key(risky) == pytest.approx(ShortestFirst().key(sure))
    assert GittinsFirst().key(risky) < 0.5 * GittinsFirst().key(sure)


def test_a_lone_calls_virtual_deadline_is_kappa_times_its_engine_seconds() -> None:
    call = a_costed_call(a_request(prompt_tokens=300, output=SURE))

    # Prefill 1 s; 100 steps of 0.1 s with 300 + 50 tokens on average, of a cache of 1000.
    engine_s = 1.0 + 0.1 / 1000 * (100**2 / 2 + 300 * 100)
    assert VirtualDeadline(7.0).key(call) == pytest.approx(50.0 + 7 * engine_s, rel=0.01)


def test_a_lone_calls_key_grows_with_its_arrival_so_none_waits_for_ever() -> None:
    order = VirtualDeadline(7.0)
    large = a_costed_call(a_request(output=LengthDistribution.point(5000)))
    bound_s = order.key(large) - 50.0

    small = a_costed_call(a_request(output=LengthDistribution.point(1)), arrived_at=50 + bound_s)

    assert order.key(small) > order.key(large)


def test_a_workflow_without_a_deadline_is_due_by_its_predicted_length() -> None:
    run = Workflows().open(a_workflow(), 40.0)
    call = a_costed_call()
    call.run, call.total_s = run, 12.0

    assert VirtualDeadline(7.0).key(call) == 40.0 + WORKFLOW_SCALE * 12.0


def test_with_kappa_0_lone_calls_go_as_they_came() -> None:
    assert VirtualDeadline(0.0).key(a_costed_call()) == 50.0


def test_kappa_is_not_negative() -> None:
    with pytest.raises(ValueError, match="kappa"):
        VirtualDeadline(-1.0)
