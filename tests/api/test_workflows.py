"""Workflows over HTTP: declared, held, seen, ended."""

import asyncio
import json

import pytest

from tests.api.harness import Json, a_gateway, chat
from tests.backends.fake_backend import a_fake_backend, after, plain

pytestmark = pytest.mark.anyio
TWO_STAGES: Json = {
    "name": "t",
    "stages": [{"name": "first"}, {"name": "second", "depends_on": ["first"]}],
    "deadline_ms": 5000,
    "metadata": {"user": "u"},
}


def stage(workflow: object, name: str, **more: str) -> dict[str, str]:
    return {"x-workflow-id": str(workflow), "x-workflow-stage": name, **more}


async def test_a_stage_is_held_until_those_before_it_are_done() -> None:
    async with a_fake_backend(after(0.1)) as engine, a_gateway(engine) as gw:
        made = await gw.request("POST", "/v1/workflows", data=_json(TWO_STAGES))
        assert made.status == 201
        assert made.json["metadata"] == {"user": "u"}
        identity = made.json["id"]

        second = asyncio.ensure_future(gw.post(chat("B"), headers=stage(identity, "second")))
        await gw.until(lambda: gw.gateway.scheduler.waiting == 1)
        seen = (await gw.request("GET", f"/v1/workflows/{identity}")).json
        assert [(call["stage"], call["state"]) for call in _list(seen["calls"])] == [
            ("second", "held")
        ]
        assert engine.calls == []
        assert (await gw.post(chat("A"), headers=stage(identity, "first"))).status == 200
        assert (await second).status == 200

        assert ["A" in str(call.json) for call in engine.calls] == [True, False]
        done = await gw.request("POST", f"/v1/workflows/{identity}/complete")
        assert (done.json["state"], done.json["total_calls"]) == ("completed", 2)
        assert (await gw.request("GET", f"/v1/workflows/{identity}")).json["state"] == "completed"


async def test_a_strict_workflow_refuses_what_would_be_held() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        body = _json({**TWO_STAGES, "strict": True})
        identity = (await gw.request("POST", "/v1/workflows", data=body)).json["id"]
        reply = await gw.post(chat(), headers=stage(identity, "second"))

        assert (reply.status, reply.error["code"]) == (409, "stage_not_ready")


async def test_deleting_a_workflow_stops_its_calls_and_nobody_elses() -> None:
    async with (
        a_fake_backend(after(5)) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 2}]) as gw,
    ):
        doomed = [
            asyncio.ensure_future(gw.post(chat(), headers=stage("wf-1", "s"))) for _ in range(3)
        ]
        await gw.until(lambda: len(engine.calls) == 2)
        spared = asyncio.ensure_future(gw.post(chat(), headers=stage("wf-10", "s")))
        await gw.until(lambda: gw.gateway.driver.in_flight == 4)
        engine.script = plain
        gone = await gw.request("DELETE", "/v1/workflows/wf-1")

        assert gone.json["state"] == "cancelled"
        for reply in [await call for call in doomed]:
            assert (reply.status, reply.error["code"]) == (409, "workflow_cancelled")
        assert (await spared).status == 200
        assert gw.settled() == {("cancelled", "workflow_cancelled"): 3, ("completed", ""): 1}


async def test_the_final_call_closes_its_workflow() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        headers = {"x-workflow-name": "t", "x-workflow-deadline-ms": "60000"}
        await gw.post(chat(), headers=stage("w", "one", **headers))
        listed = (await gw.request("GET", "/v1/workflows")).json
        assert [workflow["name"] for workflow in _list(listed["data"])] == ["t"]
        assert _list(listed["data"])[0]["deadline_ms"] == 60000
        await gw.post(chat(), headers=stage("w", "two", **{"x-workflow-final": "true"}))

        assert (await gw.request("GET", "/v1/workflows")).json["data"] == []
        assert (await gw.request("GET", "/v1/workflows/w")).json["state"] == "completed"
        assert (
            b'hexsage_workflows_total{late="false",state="completed",workflow="other"} 1.0'
            in (await gw.request("GET", "/metrics")).body
        )


@pytest.mark.parametrize(
    "header",
    [
        "x-claude-code-session-id",
        "x-session-affinity",
        "session-id",
        "x-litellm-session-id",
        "x-dynamo-session-id",
    ],
)
async def test_agents_session_ids_group_calls_too(header: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for _ in range(2):
            await gw.post(chat(), headers={header: "s-1"})

        seen = (await gw.request("GET", "/v1/workflows/s-1")).json
        assert seen["total_calls"] == 2


@pytest.mark.parametrize("identity", ["", " ", "\t"])
async def test_an_empty_id_is_no_workflow(identity: str) -> None:
    """Case 171."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(), headers={"x-workflow-id": identity})).status == 200
        assert (await gw.request("GET", "/v1/workflows")).json["data"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("POST", "/complete"), ("DELETE", "")],
)
async def test_a_workflow_that_never_was_is_a_404(method: str, path: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request(method, f"/v1/workflows/nope{path}")

        assert (reply.status, reply.error["code"]) == (404, "workflow_not_found")


@pytest.mark.parametrize(
    "wish",
    [
        {"stages": [{"name": "a", "depends_on": ["b"]}]},
        {"stages": [{"name": "a", "depends_on": ["a"]}]},
        {"stages": [{"name": "a"}, {"name": "a"}]},
        {"stages": [{"name": "a", "fan_out": 0}]},
        {"deadline_ms": -1},
        {"unknown": 1},
        {"deadline_ms": 1e300},
        {"deadline_ms": float("inf")},
        {"metadata": {"a": {"b": 1}}},
        {"metadata": {"a": "\ud800"}},
        {"metadata": {"a": "b" * 1000}},
        {"metadata": {"\ud800": "a"}},
        {"stages": [{"name": "\ud800"}]},
        [],
    ],
)
async def test_a_declaration_that_makes_no_sense_is_a_400(wish: object) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request("POST", "/v1/workflows", data=_json(wish))

        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert (await gw.request("GET", "/v1/workflows")).json["data"] == []


async def test_a_configured_template_is_declared_by_its_name() -> None:
    workflows = {"t": {"deadline_ms": 4000, "stages": [{"name": "a"}, {"name": "b"}]}}
    async with a_fake_backend(plain) as engine, a_gateway(engine, workflows=workflows) as gw:
        made = (await gw.request("POST", "/v1/workflows", data=_json({"name": "t"}))).json

        assert made["deadline_ms"] == 4000
        assert [stage["name"] for stage in _list(made["stages"])] == ["a", "b"]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _list(value: object) -> list[Json]:
    assert isinstance(value, list)
    return value
