"""Tests of loadgen.measure: what is decided before anything is sent."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.profiles import built_in
from gateway.sim.trace import dumps
from loadgen.measure import Options, prepare
from loadgen.unloaded import mean_s
from tests.loadgen.builders import a_trace_workflow

OPTIONS = Options(
    title="A test",
    url="http://127.0.0.1:1",
    model="m1",
    api_key=None,
    admin_key=None,
    policies=(),
    label="as it is",
    workload="text2sql",
    traces=(),
    qps=(0.1, 0.2),
    workflows=20,
    cv=1.0,
    seed=5,
    repeats=2,
    gpus=("A100", "L40S"),
    slo_scale=3.0,
    warmup=0.15,
    speed=1.0,
    is_streaming=False,
    is_real=False,
    timeout_s=60.0,
    out=Path("unused"),
)


def test_there_is_a_plan_for_every_seed_and_rate() -> None:
    plans = prepare(OPTIONS).plans

    assert [(plan.seed, plan.qps) for plan in plans] == [(5, 0.1), (5, 0.2), (6, 0.1), (6, 0.2)]
    assert all(len(plan.workflows) == 20 for plan in plans)


def test_the_same_options_give_the_same_plans() -> None:
    assert prepare(OPTIONS) == prepare(OPTIONS)


def test_deadlines_are_a_multiple_of_t0_on_the_fleet() -> None:
    prepared = prepare(OPTIONS)

    deadlines = {one.deadline_s for plan in prepared.plans for one in plan.workflows}
    assert deadlines == {3 * prepared.base_s}
    assert prepared.base_s > prepare(replace(OPTIONS, gpus=("A100",))).base_s


def test_a_recording_takes_the_place_of_the_workload(tmp_path: Path) -> None:
    recorded = [a_trace_workflow(arrival_s=float(at), deadline_s=7.0) for at in range(3)]
    path = tmp_path / "trace.jsonl"
    path.write_text(dumps(recorded))

    prepared = prepare(replace(OPTIONS, traces=(path,), qps=(), workflows=None, repeats=1))
    (plan,) = prepared.plans
    assert [one.arrival_s for one in plan.workflows] == [0, 1, 2]
    assert {one.deadline_s for one in plan.workflows} == {7.0}
    assert prepared.base_s == pytest.approx(mean_s(recorded, [built_in("A100"), built_in("L40S")]))


def test_several_recordings_are_played_together(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{name}.jsonl" for name in "ab")
    for path in paths:
        path.write_text(dumps([a_trace_workflow(arrival_s=0.0), a_trace_workflow(arrival_s=4.0)]))

    (plan,) = prepare(replace(OPTIONS, traces=paths, qps=(), workflows=None, repeats=1)).plans
    assert [one.arrival_s for one in plan.workflows] == [0, 0, 4, 4]
