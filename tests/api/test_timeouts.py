"""Timeouts of backends and of models: who says something special is listened to."""

import json

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import DONE, a_fake_backend, after, frame, streams

pytestmark = pytest.mark.anyio

SLOW_S, QUICK_S = 5.0, 0.3
LIMITS = [
    pytest.param("first_token_s", True, "timeout_first_token", id="first token"),
    pytest.param("total_s", False, "timeout_total", id="total"),
]


@pytest.mark.parametrize(("limit", "stream", "code"), LIMITS)
async def test_a_backend_may_have_limits_of_its_own(limit: str, stream: bool, code: str) -> None:
    async with (
        a_fake_backend(after(10)) as engine,
        a_gateway(
            engine, backends=[{"timeouts": {limit: QUICK_S}}], timeouts={limit: SLOW_S}
        ) as gw,
    ):
        reply = await gw.post(chat(stream=stream))

        assert (reply.status, reply.error["code"]) == (504, code)
        await gw.until(lambda: engine.calls[0].gone_at is not None)


@pytest.mark.parametrize(("limit", "stream", "code"), LIMITS)
async def test_a_models_limits_go_before_its_backends(limit: str, stream: bool, code: str) -> None:
    async with (
        a_fake_backend(after(1.0)) as engine,
        a_gateway(
            engine,
            backends=[{"timeouts": {limit: QUICK_S}}],
            models={
                "patient": {"target": "m1", "timeouts": {limit: SLOW_S}},
                "hasty": {"target": "m1", "timeouts": {limit: 0.1}},
            },
        ) as gw,
    ):
        patient = await gw.post({**chat(stream=stream), "model": "patient"})
        hasty = await gw.post({**chat(stream=stream), "model": "hasty"})

        assert patient.status == 200
        assert (hasty.status, hasty.error["code"]) == (504, code)


async def test_between_tokens_too() -> None:
    script = streams(frame("a"), frame("b", "stop"), DONE, gap_s=0.6)
    async with (
        a_fake_backend(script) as engine,
        a_gateway(
            engine,
            timeouts={"inter_token_s": QUICK_S},
            models={"m1": {"timeouts": {"inter_token_s": SLOW_S}}, "alias": {"target": "m1"}},
        ) as gw,
    ):
        for model in ("m1", "alias"):  # an alias has its target's
            reply = await gw.post({**chat(stream=True), "model": model})
            assert reply.body.endswith(DONE)


async def test_a_models_calls_may_wait_for_less_than_others() -> None:
    async with (
        a_fake_backend(after(1.0)) as engine,
        a_gateway(
            engine,
            backends=[{"max_in_flight": 1}],
            models={"hasty": {"target": "m1", "timeouts": {"queue_s": QUICK_S}}},
        ) as gw,
    ):
        first = await gw.dial(chat())
        await gw.until(lambda: len(engine.calls) == 1)

        hasty = await gw.post({**chat(), "model": "hasty"})

        assert (hasty.status, hasty.error["code"]) == (503, "queue_timeout")
        assert float(hasty.headers["retry-after"]) >= 1
        assert b"200 OK" in await first.read_until(b"\r\n\r\n")


async def test_a_limit_that_is_changed_while_it_runs_holds_for_the_next_call() -> None:
    async with (
        a_fake_backend(after(1.0)) as engine,
        a_gateway(engine, models={"m1": {"timeouts": {"total_s": QUICK_S}}}) as gw,
    ):
        assert (await gw.post(chat())).status == 504
        settings = gw.gateway._settings  # as a reload would
        changed = settings.model_copy(update={"models": {}})

        gw.gateway._apply(changed, ())

        reply = await gw.post(chat())
        assert reply.status == 200
        assert json.loads(reply.body)["choices"]
