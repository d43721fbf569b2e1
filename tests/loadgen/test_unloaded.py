"""Tests of loadgen.unloaded."""

import pytest

from gateway.core.profiles import GpuProfile
from loadgen.unloaded import call_s, mean_s, workflow_s
from tests.loadgen.builders import a_trace_call, a_trace_workflow

GPU = GpuProfile(
    name="round figures",
    prefill_s_per_token=0.001,
    decode_base_s=0.1,
    kv_read_s_per_token=0.0,
    step_overhead_s=0.01,
    kv_tokens=10_000,
    max_batched_tokens=1000,
)


def test_a_prompt_is_read_in_chunks_and_the_last_one_brings_the_first_token() -> None:
    call = a_trace_call(prompt_tokens=1500, output_tokens=3)

    # Chunks of 1,000 and 500 tokens, then two steps of decoding.
    assert call_s(call, GPU) == pytest.approx(1.01 + 0.51 + 2 * 0.11)


def test_the_shared_template_is_cached() -> None:
    call = a_trace_call(prompt_tokens=1500, output_tokens=1, template="t", template_tokens=1300)

    assert call_s(call, GPU) == pytest.approx(0.21)


def test_a_workflow_takes_its_longest_call_of_each_step_and_the_tools() -> None:
    short, long = a_trace_call(output_tokens=1), a_trace_call(output_tokens=11)
    workflow = a_trace_workflow([short, long], [short], tool_s=2.0)

    assert workflow_s(workflow, GPU) == pytest.approx(
        2 * 2 + call_s(long, GPU) + call_s(short, GPU)
    )


def test_t0_is_the_mean_over_workflows_and_engines() -> None:
    slow = GpuProfile(
        name="half as fast",
        prefill_s_per_token=0.002,
        decode_base_s=0.2,
        kv_read_s_per_token=0.0,
        step_overhead_s=0.02,
        kv_tokens=10_000,
        max_batched_tokens=1000,
    )
    workflow = a_trace_workflow([a_trace_call()])

    assert mean_s([workflow], [GPU, slow]) == pytest.approx(1.5 * workflow_s(workflow, GPU))
