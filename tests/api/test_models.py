"""What the fleet serves, under its own names and its aliases."""

import json

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import STREAM, USAGE, WHOLE, a_fake_backend, answers, plain

pytestmark = pytest.mark.anyio
ALIASES = {"gpt-x": {"target": "m1"}, "org/model:8b": {"target": "m1"}}


async def test_each_model_is_listed_once_with_its_context() -> None:
    """Cases 140 and 142."""
    async with (
        a_fake_backend(plain) as first,
        a_fake_backend(plain) as second,
        a_gateway(first, second, models=ALIASES) as gw,
    ):
        listed = (await gw.request("GET", "/v1/models")).json

        assert listed["object"] == "list"
        cards = listed["data"]
        assert isinstance(cards, list)
        assert [card["id"] for card in cards] == ["gpt-x", "m1", "org/model:8b"]
        assert {card["max_model_len"] for card in cards} == {4096}


@pytest.mark.parametrize(
    ("path", "status"),
    [("m1", 200), ("org/model:8b", 200), ("org%2Fmodel:8b", 200), ("nope", 404), ("M1", 404)],
)
async def test_one_model_can_be_asked_for(path: str, status: int) -> None:
    """Case 139."""
    async with a_fake_backend(plain) as engine, a_gateway(engine, models=ALIASES) as gw:
        reply = await gw.request("GET", f"/v1/models/{path}")

        assert reply.status == status
        if status == 404:
            assert reply.error["code"] == "model_not_found"


async def test_an_alias_is_served_under_its_own_name() -> None:
    """Case 98: lengths are right although the body has changed."""
    async with a_fake_backend(plain) as engine, a_gateway(engine, models=ALIASES) as gw:
        whole = await gw.post({**chat('m1 is "model": "m1"'), "model": "gpt-x"})
        stream = await gw.post({**chat(), "model": "org/model:8b", "stream": True})

        assert [seen.json["model"] for seen in engine.calls] == ["m1", "m1"]
        assert whole.body == WHOLE.replace(b'"m1"', b'"gpt-x"')
        assert whole.json["model"] == "gpt-x"
        expected = b"".join(event for event in STREAM if event != USAGE)
        assert stream.body == expected.replace(b'"m1"', b'"org/model:8b"')
        assert gw.tokens()[1] == 10


async def test_a_model_whose_backends_are_down_is_known_and_unavailable() -> None:
    """Case 147."""
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, backends=[{"model": "m1"}]) as gw,
    ):
        engine.is_healthy = False
        await gw.until(lambda: gw.gateway.missing() is not None)
        known = await gw.post(chat())
        unknown = await gw.post({**chat(), "model": "zzz"})

        assert (known.status, known.error["code"]) == (503, "no_healthy_backend")
        assert int(known.headers["retry-after"]) >= 1
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        engine.is_healthy = True
        await gw.until(lambda: gw.gateway.missing() is None)


async def test_text_in_an_answer_is_no_model_name() -> None:
    text = 'the key "model": "m1" stays'
    body = json.loads(WHOLE)
    body["choices"][0]["message"]["content"] = text

    reordered = {"choices": body["choices"], **body}
    script = answers(json.dumps(reordered).encode())
    async with a_fake_backend(script) as engine, a_gateway(engine, models=ALIASES) as gw:
        reply = await gw.post({**chat(), "model": "gpt-x"})

        assert reply.json["model"] == "gpt-x"
        assert text in str(reply.json["choices"])
