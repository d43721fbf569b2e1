"""What operators see of the tuner."""

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, plain

pytestmark = pytest.mark.anyio


async def test_a_gateway_without_traffic_has_nothing_to_tune_and_says_so() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        before = (await gw.request("GET", "/admin/tuner")).json
        tuning = (await gw.request("POST", "/admin/tuner")).json
        after = (await gw.request("GET", "/admin/tuner")).json

    assert (before["objective"], before["is_searching"], before["history"]) == ("p95", False, [])
    assert tuning["applied"] is False
    assert str(tuning["outcome"]).startswith("nothing to tune")
    assert after["history"] == [tuning]


async def test_each_backend_tells_by_how_much_its_profile_was_corrected() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat())
        state = (await gw.request("GET", "/admin/backends")).json

    assert isinstance(state["backends"], list)
    (backend,) = state["backends"]
    assert set(backend["learned"]) == {"prefill", "decode"}
    assert set(backend["learned"]["decode"]) == {"factor", "learned", "samples"}
