"""The register: what a call is charged and how long its answer is forecast to be."""

import pytest

from gateway.api.calls import read_call
from gateway.api.desk import Arrival, Register, arrival_of
from gateway.api.endpoints import ENDPOINTS
from gateway.api.lesson import outline_of
from gateway.api.limits import NO_LIMITS, Account
from gateway.core.types import ANONYMOUS
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import PromptQuery
from gateway.runtime.clock import MonotonicClock

CHAT = ENDPOINTS["/v1/chat/completions"]
RAW = b'{"model":"m","messages":[{"role":"user","content":"How is a raven like a desk?"}]}'


def an_arrival() -> Arrival:
    asked = read_call(RAW, {}, ANONYMOUS, lambda named: (named or "", named or ""), CHAT)
    outline = outline_of(CHAT, asked, ANONYMOUS)
    return arrival_of(
        "id",
        "id",
        asked,
        outline,
        ANONYMOUS,
        able=frozenset(),
        began_at=0.0,
        body=RAW,
        queue_timeout_s=None,
    )


@pytest.mark.anyio
@pytest.mark.parametrize("is_full", [False, True])
async def test_nobody_waits_for_a_forecast_of_a_call_that_will_be_turned_away(
    is_full: bool,
) -> None:
    predictor = LengthPredictor(PredictorSettings())
    predictor.start()
    try:
        for number in range(32):
            query = PromptQuery(model="m", prompt_tokens=20, text=f"Question {number}?")
            predictor.observe(await predictor.predict(query), 10 + 40 * number)
        await predictor.drained()
        asked_of: list[tuple[str, str, int]] = []

        def full(tenant: str, model: str, body_bytes: int) -> bool:
            asked_of.append((tenant, model, body_bytes))
            return is_full

        register = Register(predictor, MonotonicClock(), is_full=full)
        entry = register.enter(an_arrival(), Account(NO_LIMITS, 0.0))

        assert entry.ask() is not is_full
        assert asked_of == [(ANONYMOUS, "m", len(RAW))]
        entry.close(None)
    finally:
        predictor.close()
