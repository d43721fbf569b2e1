"""Fleet: who can take what, and the average backend."""

from collections.abc import Callable

import pytest

from gateway.core.fleet import Fleet
from gateway.core.queues import FairShares
from gateway.core.types import Backend, BackendId, BackendState
from tests.builders import a_backend, a_call, a_profile, a_request

UP = BackendState.UP
A, B, C = BackendId("a"), BackendId("b"), BackendId("c")


def a_fleet(*backends: Backend) -> Fleet:
    """A fleet of these."""
    return Fleet(backends, FairShares())


def ids(fleet: Fleet, **request: object) -> list[str]:
    """The backends of a request's pool."""
    return [load.id for load in fleet.pool(a_request(**request)).loads]  # type: ignore[arg-type]


def test_backends_are_kept_by_model_in_order_of_id() -> None:
    fleet = a_fleet(a_backend("c"), a_backend("a"), a_backend("b", models=frozenset({"m1", "m2"})))

    assert [load.id for load in fleet.serving("m1")] == [A, B, C]
    assert [load.id for load in fleet.serving("m2")] == [B]
    assert fleet.serving("m9") == []
    assert fleet.models() == ["m1", "m2"]


def test_a_pool_holds_those_that_offer_the_api_and_can_hold_the_prompt() -> None:
    fleet = a_fleet(
        a_backend("a", profile=a_profile(kv_tokens=1000)),
        a_backend("b", profile=a_profile(kv_tokens=2000)),
        a_backend("c"),
    )

    assert ids(fleet) == [A, B, C]
    assert ids(fleet, eligible=frozenset({A, C})) == [A, C]
    assert ids(fleet, prompt_tokens=1000) == [B, C]
    assert ids(fleet, prompt_tokens=999) == [A, B, C]
    assert ids(fleet, prompt_tokens=1500, eligible=frozenset({A, C})) == [C]
    assert ids(fleet, prompt_tokens=10**9) == []


def test_the_same_backends_are_the_same_pool() -> None:
    fleet = a_fleet(a_backend("a", models=frozenset({"m1", "m2"})), a_backend("b"))
    everywhere = fleet.pool(a_request())

    assert fleet.pool(a_request(eligible=frozenset({A, B, C}))) is everywhere
    assert fleet.pool(a_request(model="m2")) is fleet.pool(a_request(eligible=frozenset({A})))
    assert fleet.is_current(everywhere)


def test_a_pool_outlives_changes_of_state_and_speed() -> None:
    fleet = a_fleet(a_backend("a"), a_backend("b"))
    pool = fleet.pool(a_request())

    fleet.change(a_backend("a", profile=a_profile(slowness=2)), BackendState.DOWN)

    assert fleet.is_current(pool)
    assert [load.id for load in pool.open()] == [B]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda fleet: fleet.change(a_backend("b"), UP), id="a new backend"),
        pytest.param(lambda fleet: fleet.remove(A), id="a backend less"),
        pytest.param(
            lambda fleet: fleet.change(a_backend("a", models=frozenset()), UP), id="other models"
        ),
        pytest.param(
            lambda fleet: fleet.change(a_backend("a", profile=a_profile(kv_tokens=9)), UP),
            id="less memory",
        ),
    ],
)
def test_a_pool_is_no_more_when_other_backends_could_serve_it(
    change: Callable[[Fleet], object],
) -> None:
    fleet = a_fleet(a_backend("a"))
    pool = fleet.pool(a_request())

    change(fleet)

    assert not fleet.is_current(pool)
    assert fleet.pool(a_request()) is not pool


def test_those_that_failed_a_call_come_last() -> None:
    fleet = a_fleet(a_backend("a"), a_backend("b"))
    call = a_call()
    call.tried.add(A)

    assert [load.id for load in fleet.open_for(call)] == [B]
    fleet.change(a_backend("b"), BackendState.DOWN)
    assert [load.id for load in fleet.open_for(call)] == [A]


def test_the_reference_is_the_average_of_those_that_have_the_model() -> None:
    fleet = a_fleet(a_backend("a"), a_backend("b", profile=a_profile(slowness=3)))
    reference = fleet.reference("m1")
    assert reference is not None
    assert reference.decode_base_s == 0.2

    fleet.remove(B)

    reference = fleet.reference("m1")
    assert reference is not None
    assert reference.decode_base_s == 0.1
    assert fleet.reference("m9") is None


def test_a_backend_that_is_removed_is_closed_to_all() -> None:
    fleet = a_fleet(a_backend("a"))
    load = fleet.loads[A]

    assert fleet.remove(A) is load
    assert load.state is BackendState.DOWN
    assert fleet.remove(A) is None


def test_a_new_backend_may_begin_in_any_state() -> None:
    fleet = a_fleet()

    fleet.change(a_backend("a"), BackendState.DRAINING)

    assert fleet.loads[A].state is BackendState.DRAINING
    assert fleet.pool(a_request()).open() == ()
