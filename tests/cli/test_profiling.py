"""A profile from timed calls."""

from random import Random

import pytest
import yaml

from gateway.cli.profiling import Measured, TimedCall, fit, yaml_block
from gateway.config.backends import ProfileEntry
from gateway.core.cost import prefill_s, step_s
from gateway.core.profiles import GpuProfile, built_in


def timed(profile: GpuProfile, batch: int, prompt_tokens: int, output_tokens: int) -> TimedCall:
    """Return the call as an ideal server would time it, 10 ms away."""
    first_s = 0.01 + prefill_s(profile, prompt_tokens)
    context_tokens = batch * (prompt_tokens + output_tokens / 2)
    steps_s = (output_tokens - 1) * step_s(profile, batch, context_tokens)
    return TimedCall(
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        first_token_s=first_s,
        total_s=first_s + steps_s,
    )


@pytest.mark.parametrize("gpu", ["A100", "A6000", "H100", "L4"])
def test_the_profile_behind_the_calls_is_found(gpu: str) -> None:
    profile = built_in(gpu)
    rng = Random(3)
    reading = [timed(profile, 1, n + rng.randint(0, 9), 2) for n in (64, 1000, 4000) * 3]
    writing = [timed(profile, batch, 64, 64) for batch in (1, 1, 4, 16)]
    writing += [timed(profile, batch, 4000, 64) for batch in (1, 4)]

    measured = fit(reading, writing)

    assert measured.prefill_s_per_token == pytest.approx(profile.prefill_s_per_token, rel=0.02)
    assert measured.decode_base_s == pytest.approx(profile.decode_base_s, rel=0.02)
    assert measured.kv_read_s_per_token == pytest.approx(profile.kv_read_s_per_token, rel=0.05)


def test_noise_never_makes_a_profile_that_is_refused() -> None:
    fast = [
        TimedCall(batch=1, prompt_tokens=n, output_tokens=2, first_token_s=0.01, total_s=0.01)
        for n in (64, 1000, 4000)
    ]

    entry = ProfileEntry.model_validate(yaml.safe_load(yaml_block(fit(fast, fast), 1))["profile"])

    assert entry.to_core("x").decode_base_s > 0


def test_one_prompt_length_is_not_enough() -> None:
    call = timed(built_in("A100"), 1, 64, 2)

    with pytest.raises(ValueError, match="two lengths"):
        fit([call], [call])


def test_the_block_is_what_the_configuration_reads() -> None:
    measured = Measured(prefill_s_per_token=0.001, decode_base_s=0.02, kv_read_s_per_token=1e-7)

    entry = ProfileEntry.model_validate(yaml.safe_load(yaml_block(measured, 57000))["profile"])

    profile = entry.to_core("x")
    assert profile.prefill_s_per_token == pytest.approx(0.001)
    assert profile.kv_read_s_per_token == pytest.approx(1e-7)
    assert profile.kv_tokens == 57000


def test_what_the_server_does_not_tell_is_left_to_be_filled_in() -> None:
    measured = Measured(prefill_s_per_token=0.001, decode_base_s=0.02, kv_read_s_per_token=1e-7)

    assert "fill in" in yaml_block(measured, None)
