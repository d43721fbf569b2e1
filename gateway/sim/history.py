"""What a gateway would know from workflows it has seen before: lengths and courses by stage."""

from collections.abc import Iterable

from gateway.core.cost import unloaded_s
from gateway.core.lengths import PRIOR, LengthDistribution
from gateway.core.profiles import GpuProfile
from gateway.core.workflow import Workflows
from gateway.sim.trace import SINGLE, TraceCall, TraceWorkflow


class StageHistory:
    """The answer lengths of earlier workflows, by stage, as the simulator's forecast."""

    def __init__(self, workflows: Iterable[TraceWorkflow]) -> None:
        samples: dict[str, list[float]] = {}
        for workflow in workflows:
            for call in workflow.calls:
                samples.setdefault(call.stage, []).append(float(call.output_tokens))
        self._by_stage = {
            stage: LengthDistribution.from_samples(lengths) for stage, lengths in samples.items()
        }

    def predict(self, call: TraceCall) -> LengthDistribution:
        """Return what calls of this stage have been like; the prior for a stage never seen."""
        return self._by_stage.get(call.stage, PRIOR)


def oracle(call: TraceCall) -> LengthDistribution:
    """Return the truth."""
    return LengthDistribution.point(call.output_tokens)


def teach(workflows: Workflows, seen: Iterable[TraceWorkflow], reference: GpuProfile) -> None:
    """Let the scheduler's workflow templates learn from runs that are over."""
    for workflow in seen:
        if workflow.name != SINGLE:
            workflows.templates.learn(
                workflow.name,
                (
                    (step.calls[0].stage, max(_alone_s(call, reference) for call in step.calls))
                    for step in workflow.steps
                ),
            )


def critical_path_s(workflow: TraceWorkflow, profile: GpuProfile) -> float:
    """Return the workflow's time on an otherwise idle backend with warm template caches."""
    return sum(
        step.tool_s + max(_alone_s(call, profile) for call in step.calls) for step in workflow.steps
    )


def _alone_s(call: TraceCall, profile: GpuProfile) -> float:
    fresh_tokens = max(call.prompt_tokens - call.template_tokens, 1)
    return unloaded_s(profile, fresh_tokens, call.prompt_tokens, call.output_tokens)
