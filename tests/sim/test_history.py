"""History: what earlier workflows teach the simulated gateway."""

import pytest

from gateway.core.lengths import PRIOR
from gateway.core.profiles import GpuProfile
from gateway.core.workflow import Workflows
from gateway.sim.history import StageHistory, critical_path_s, oracle, teach
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow
from tests.builders import a_profile

GPU: GpuProfile = a_profile()
"""1 ms a prompt token, 100 ms a step."""


def call(
    stage: str, prompt_tokens: int = 500, output_tokens: int = 11, template_tokens: int = 0
) -> TraceCall:
    """A call of a stage."""
    return TraceCall(
        stage=stage,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        template=stage,
        template_tokens=template_tokens,
    )


WORKFLOW = TraceWorkflow(
    name="t",
    steps=(
        TraceStep(calls=(call("plan", 500, 11),)),
        TraceStep(calls=(call("write", 500, 21), call("write", 500, 31)), tool_s=4.0),
        TraceStep(calls=(call("check", 500, 1, template_tokens=300),), tool_s=1.0),
    ),
)


def test_the_critical_path_is_the_longest_call_of_each_step_and_the_tools() -> None:
    # 0.5 + 1.0, 4 + 0.5 + 3.0, 1 + 0.2: the template is cached.
    assert critical_path_s(WORKFLOW, GPU) == pytest.approx(1.5 + 7.5 + 1.2)


def test_runs_that_were_seen_teach_how_much_is_left() -> None:
    workflows = Workflows()

    teach(workflows, [WORKFLOW], GPU)

    template = workflows.templates.get("t")
    assert template is not None
    left = {stage: known.remaining_s.value for stage, known in template.stages.items()}
    # What tools take is not the fleet's time.
    assert left == pytest.approx({"plan": 1.5 + 3.5 + 0.2, "write": 3.5 + 0.2, "check": 0.2})


def test_single_calls_teach_nothing_about_workflows() -> None:
    workflows = Workflows()

    teach(workflows, [TraceWorkflow(name=SINGLE, steps=WORKFLOW.steps[:1])], GPU)

    assert workflows.templates.items() == []


def test_a_stage_is_forecast_by_its_own_past() -> None:
    history = StageHistory([WORKFLOW])

    write = history.predict(call("write"))

    assert write.exceeds(18) == 1.0
    assert write.exceeds(34) == 0.0
    assert write.mean_tokens == pytest.approx((21 + 31) / 2, rel=0.2)


def test_a_stage_never_seen_is_forecast_by_the_prior() -> None:
    assert StageHistory([WORKFLOW]).predict(call("unknown")) is PRIOR


def test_the_oracle_knows() -> None:
    assert oracle(call("x", output_tokens=77)).mean_tokens == 77
