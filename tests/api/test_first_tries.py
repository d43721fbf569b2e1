"""A call that is tried again keeps the place of its first try."""

import pytest

from gateway.api.first_tries import MAX_REMEMBERED, REMEMBERED_FOR_S, FirstTries, Try
from gateway.core.types import TenantId
from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, answers, plain

A, B = TenantId("a"), TenantId("b")


def test_only_the_same_tenants_same_body_is_remembered() -> None:
    tries = FirstTries()
    tries.remember(Try.of(A, b"body"), 5.0)

    assert tries.of(Try.of(A, b"body"), 6.0) == 5.0
    assert tries.of(Try.of(B, b"body"), 6.0) is None
    assert tries.of(Try.of(A, b"other"), 6.0) is None


def test_the_first_of_several_tries_counts() -> None:
    tries = FirstTries()
    tries.remember(Try.of(A, b"body"), 5.0)
    tries.remember(Try.of(A, b"body"), 7.0)

    assert tries.of(Try.of(A, b"body"), 8.0) == 5.0


def test_it_is_forgotten_in_time_and_bounded_in_number() -> None:
    tries = FirstTries()
    tries.remember(Try.of(A, b"body"), 0.0)
    assert tries.of(Try.of(A, b"body"), REMEMBERED_FOR_S + 1) is None
    for number in range(MAX_REMEMBERED):
        tries.remember(Try.of(A, b"%d" % number), 0.0)
    assert tries.of(Try.of(A, b"body"), 1.0) is None


def test_what_was_answered_is_forgotten() -> None:
    tries = FirstTries()
    tries.remember(Try.of(A, b"body"), 5.0)
    tries.forget(Try.of(A, b"body"))
    tries.forget(Try.of(A, b"never seen"))

    assert tries.of(Try.of(A, b"body"), 6.0) is None


def test_what_was_forgotten_is_remembered_anew() -> None:
    tries = FirstTries()
    tries.remember(Try.of(A, b"body"), 0.0)
    tries.remember(Try.of(A, b"body"), REMEMBERED_FOR_S + 1)

    assert tries.of(Try.of(A, b"body"), REMEMBERED_FOR_S + 2) == REMEMBERED_FOR_S + 1


@pytest.mark.anyio
async def test_a_retried_call_keeps_its_first_place_until_it_is_answered() -> None:
    full = answers(b'{"error": {"message": "full", "code": 503}}', "503 Full")
    async with a_fake_backend(full) as engine, a_gateway(engine) as gw:
        first = await gw.post(chat(), headers={"x-stainless-retry-count": "0"})
        engine.script = plain
        again = await gw.post(chat(), headers={"x-stainless-retry-count": "1"})
        anew = await gw.post(chat(), headers={"x-stainless-retry-count": "1"})

        assert (first.status, again.status, anew.status) == (503, 200, 200)
        recent = (await gw.request("GET", "/admin/state")).json["recent"]
        assert isinstance(recent, list)
        one, two, three = [line for line in recent if line["type"] == "Arrived"]
        assert one["first_seen_at"] is None
        assert two["first_seen_at"] == pytest.approx(one["at"], abs=0.01)
        assert three["first_seen_at"] is None
