"""T0: how long a workflow takes on idle engines, the yardstick of its deadline (pure).

Closed form of `GpuProfile`'s step: the prompt in chunks (the shared template is cached), then a
step a token; the calls of a step run one on an engine, tool time is added.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean

from gateway.core.profiles import GpuProfile
from gateway.sim.trace import TraceCall, TraceWorkflow


def call_s(call: TraceCall, gpu: GpuProfile) -> float:
    """Return the seconds of one call alone on an engine."""
    left = max(call.prompt_tokens - call.template_tokens, 1)
    cached = call.prompt_tokens - left
    total_s = 0.0
    while left > 0:
        chunk = min(left, gpu.max_batched_tokens)
        total_s += _step_s(gpu, chunk, cached)
        cached += chunk
        left -= chunk
    # The last chunk of the prompt brings the first token.
    steps = call.output_tokens - 1
    return total_s + steps * _step_s(gpu, 1, call.prompt_tokens + call.output_tokens / 2)


def workflow_s(workflow: TraceWorkflow, gpu: GpuProfile) -> float:
    """Return the seconds of a workflow's critical path, every call alone on an engine."""
    return sum(
        step.tool_s + max(call_s(call, gpu) for call in step.calls) for step in workflow.steps
    )


def mean_s(workflows: Iterable[TraceWorkflow], fleet: Sequence[GpuProfile]) -> float:
    """Return T0: the mean critical path over workflows and over the engines of a fleet."""
    return fmean(workflow_s(workflow, gpu) for workflow in workflows for gpu in fleet)


def _step_s(gpu: GpuProfile, tokens: int, kv_tokens: float) -> float:
    work_s = max(gpu.decode_base_s, gpu.prefill_s_per_token * tokens)
    return gpu.step_overhead_s + work_s + gpu.kv_read_s_per_token * kv_tokens
