"""Cost: seconds for a call, by hand."""

from dataclasses import replace

import pytest

from gateway.core.cost import average, prefill_s, step_s, unloaded_s
from gateway.core.profiles import GpuProfile

GPU = GpuProfile(
    name="round numbers",
    prefill_s_per_token=0.001,
    decode_base_s=0.05,
    kv_read_s_per_token=0.00001,
    step_overhead_s=0.002,
    kv_tokens=50_000,
    max_batched_tokens=1000,
)


@pytest.mark.parametrize(
    ("tokens", "expected_s"),
    [
        pytest.param(500, 0.002 + 0.5, id="arithmetic"),
        pytest.param(10, 0.002 + 0.05, id="a short prompt takes a step all the same"),
        pytest.param(1000, 0.002 + 1.0, id="exactly a chunk"),
        pytest.param(2500, 3 * 0.002 + 2.5, id="three chunks have three overheads"),
        pytest.param(0, 0.002 + 0.05, id="nothing to read is still a step"),
    ],
)
def test_reading_a_prompt(tokens: float, expected_s: float) -> None:
    assert prefill_s(GPU, tokens) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("batch", "context_tokens", "expected_s"),
    [
        pytest.param(1, 0, 0.002 + 0.05, id="the weights are read"),
        pytest.param(1, 2000, 0.002 + 0.05 + 0.02, id="so is the KV cache"),
        pytest.param(80, 0, 0.002 + 0.08, id="a large batch is bound by arithmetic"),
    ],
)
def test_a_decode_step(batch: int, context_tokens: int, expected_s: float) -> None:
    assert step_s(GPU, batch, context_tokens) == pytest.approx(expected_s)


def test_a_call_alone_reads_its_prompt_and_decodes_the_rest() -> None:
    # The first token comes with the prompt; 20 more read 300 + 21/2 tokens each, on average.
    expected_s = (0.002 + 0.2) + 20 * (0.052 + 0.00001 * (300 + 10.5))

    assert unloaded_s(GPU, 200, 300, 21) == pytest.approx(expected_s)


def test_an_answer_of_one_token_decodes_nothing() -> None:
    assert unloaded_s(GPU, 200, 300, 1) == prefill_s(GPU, 200)
    assert unloaded_s(GPU, 200, 300, 0) == prefill_s(GPU, 200)


def test_the_average_backend_is_the_mean_of_all() -> None:
    slow = replace(
        GPU, prefill_s_per_token=0.003, decode_base_s=0.07, kv_tokens=10_000, max_batched_tokens=500
    )

    mean = average([GPU, slow])

    assert mean.prefill_s_per_token == pytest.approx(0.002)
    assert mean.decode_base_s == pytest.approx(0.06)
    assert mean.kv_read_s_per_token == pytest.approx(GPU.kv_read_s_per_token)
    assert mean.kv_tokens == 30_000
    assert mean.max_batched_tokens == 500
