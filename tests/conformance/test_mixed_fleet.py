"""Where kinds of engines are mixed, a request goes to one that can do what it asks."""

import pytest

from tests.api.harness import a_gateway, chat
from tests.conformance.engines import PATIENT, emulated

pytestmark = pytest.mark.anyio


async def test_what_tgi_cannot_do_is_done_elsewhere() -> None:
    async with emulated("tgi") as tgi, emulated("vllm") as vllm:
        kinds = [{"kind": "tgi"}, {"kind": "vllm"}]
        async with a_gateway(tgi, vllm, backends=kinds, health=PATIENT) as gw:
            replies = [await gw.post(chat(n=2)) for _ in range(4)]

            assert [reply.status for reply in replies] == [200] * 4
            assert {len(reply.json["choices"]) for reply in replies} == {2}  # type: ignore[arg-type]


async def test_what_nobody_can_do_is_refused_with_the_fields_name() -> None:
    async with (
        emulated("tgi") as tgi,
        a_gateway(tgi, backends=[{"kind": "tgi"}], health=PATIENT) as gw,
    ):
        reply = await gw.post(chat(n=2))

        assert reply.status == 400
        assert (reply.error["param"], reply.error["code"]) == ("n", "unsupported_parameter")
        assert reply.headers["x-should-retry"] == "false"
        assert gw.settled() == {("invalid", "unsupported"): 1}


async def test_an_adapter_is_asked_for_by_its_name_and_any_other_model_as_the_base() -> None:
    async with emulated("tgi") as tgi:
        backend = {"kind": "tgi", "adapters": ["sql-lora"]}
        async with a_gateway(tgi, backends=[backend], health=PATIENT) as gw:
            replies = [await gw.post(chat(model=model)) for model in ("m1", "sql-lora")]
            listed = await gw.request("GET", "/v1/models")

            assert [reply.json["model"] for reply in replies] == ["m1", "sql-lora"]
            assert b'"sql-lora"' in listed.body
