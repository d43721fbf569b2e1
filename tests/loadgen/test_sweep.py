"""Tests of loadgen.sweep."""

import asyncio

import pytest

from loadgen.plan import Plan, build
from loadgen.records import Run
from loadgen.runner import Target
from loadgen.sweep import Job, Policy, TargetError, interleaved, model_at, sweep
from tests.loadgen.builders import a_trace_workflow
from tests.loadgen.stub_server import StubServer, stub_server

RR, HEXGEN = Policy.parse("round_robin+fcfs"), Policy.parse("hexgen:alpha=0.3")


def a_plan(seed: int = 1) -> Plan:
    return build([a_trace_workflow()] * 2, [0.0, 1.0], seed=seed, qps=1.0, deadline_s=9.0)


async def swept(stub: StubServer, jobs: list[Job]) -> list[Run]:
    runs: list[Run] = []
    target = Target(url=stub.url, model="m1", headers={}, speed=1000.0)
    await sweep(jobs, target, {}, runs, on_start=lambda _: None, on_workflow=lambda _: None)
    return runs


@pytest.mark.parametrize(
    ("text", "name", "alpha"),
    [("hexgen", "hexgen", None), ("hexgen:alpha=0.3", "hexgen", 0.3), ("a+b", "a+b", None)],
)
def test_a_policy_is_a_name_and_perhaps_an_alpha(text: str, name: str, alpha: float | None) -> None:
    assert Policy.parse(text) == Policy(label=text, name=name, alpha=alpha)


@pytest.mark.parametrize("text", ["", ":alpha=0.3", "a:alpha=2", "a:alpha=x", "a:beta=0.3", "a:"])
def test_a_policy_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"alpha|empty"):
        Policy.parse(text)


def test_every_plan_runs_under_every_policy_and_the_first_one_changes() -> None:
    jobs = interleaved([a_plan(1), a_plan(2)], [RR, HEXGEN], label="")

    assert [(job.plan.seed, job.label) for job in jobs] == [
        (1, "round_robin+fcfs"),
        (1, "hexgen:alpha=0.3"),
        (2, "hexgen:alpha=0.3"),
        (2, "round_robin+fcfs"),
    ]


def test_without_policies_each_plan_runs_once() -> None:
    (job,) = interleaved([a_plan()], [], label="as it is")

    assert (job.policy, job.label) == (None, "as it is")


def test_policies_are_set_before_their_runs_and_ids_never_come_twice() -> None:
    async def go() -> tuple[StubServer, list[Run]]:
        async with stub_server() as stub:
            return stub, await swept(stub, interleaved([a_plan()], [RR, HEXGEN], label=""))

    stub, runs = asyncio.run(go())

    assert stub.policies == [{"name": "round_robin+fcfs"}, {"name": "hexgen", "alpha": 0.3}]
    assert [run.policy for run in runs] == ["round_robin+fcfs", "hexgen:alpha=0.3"]
    assert runs[0].plan == runs[1].plan
    assert len({headers["x-request-id"] for headers, _ in stub.calls}) == 4
    assert len({headers["x-workflow-id"] for headers, _ in stub.calls}) == 4


def test_the_next_run_waits_until_the_gateway_is_idle() -> None:
    async def go() -> StubServer:
        async with stub_server() as stub:
            stub.busy_answers = 2
            await swept(stub, interleaved([a_plan()], [RR], label=""))
            return stub

    assert asyncio.run(go()).busy_answers < 0


def test_a_policy_the_gateway_does_not_know_ends_the_sweep_with_its_words() -> None:
    async def go() -> None:
        async with stub_server() as stub:
            await swept(stub, interleaved([a_plan()], [Policy.parse("unknown")], label=""))

    with pytest.raises(TargetError, match=r"PUT .*/admin/policy was answered 400: no such policy"):
        asyncio.run(go())


def test_a_server_that_has_no_policies_is_said_to_have_none() -> None:
    async def go() -> None:
        async with stub_server() as stub:
            stub.url += "/elsewhere"  # nothing of the gateway's is there
            await swept(stub, interleaved([a_plan()], [RR], label=""))

    with pytest.raises(TargetError, match="only a HexSage gateway can be given --policies"):
        asyncio.run(go())


def test_the_first_model_is_asked_for() -> None:
    async def go() -> str:
        async with stub_server() as stub:
            return await model_at(stub.url, {})

    assert asyncio.run(go()) == "m1"


def test_a_model_that_the_server_does_not_list_is_refused_if_it_lists_any() -> None:
    async def go(models: tuple[str, ...], wanted: str) -> str:
        async with stub_server() as stub:
            stub.models = models
            return await model_at(stub.url, {}, wanted)

    assert asyncio.run(go(("m1", "m2"), "m2")) == "m2"
    assert asyncio.run(go((), "m2")) == "m2"
    with pytest.raises(TargetError, match=r"--model: .*/v1/models lists no 'nope', only m1, m2$"):
        asyncio.run(go(("m1", "m2"), "nope"))


def test_a_server_without_models_or_that_is_not_there_is_named() -> None:
    async def no_models() -> None:
        async with stub_server() as stub:
            stub.models = ()
            await model_at(stub.url, {})

    with pytest.raises(TargetError, match="give one with --model"):
        asyncio.run(no_models())
    with pytest.raises(TargetError, match=r"GET http://127.0.0.1:1/v1/models failed"):
        asyncio.run(model_at("http://127.0.0.1:1", {}))
