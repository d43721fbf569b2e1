"""Profiles: fitted, computed, refused."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.cost import step_s
from gateway.core.profiles import (
    GPU_ALIASES,
    GPUS,
    PROFILES,
    GpuProfile,
    built_in,
    roofline,
)


@pytest.mark.parametrize("name", sorted([*PROFILES, *GPU_ALIASES.keys() - {"H200", "MI300X"}]))
def test_a_gpu_alone_has_the_fitted_profile(name: str) -> None:
    assert built_in(name) is PROFILES[GPU_ALIASES.get(name, name)]


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_gpu_runs_a_small_model(name: str) -> None:
    profile = built_in(name, 8, 16)

    assert profile.name == name
    assert profile.kv_tokens > 20_000
    assert 0.001 < step_s(profile, 1, 1000) < 0.1


def test_weights_are_read_once_a_step_and_tokens_cost_two_operations_a_parameter() -> None:
    profile = roofline("H100", 70, 4)

    assert profile.decode_base_s == pytest.approx(35 / (3350 * 0.7))
    assert profile.prefill_s_per_token == pytest.approx(140e9 / (989e12 * 0.5))
    assert profile.kv_tokens == pytest.approx((80 * 0.9 - 2 - 35) * 1e9 / 327_680, abs=1)


def test_without_a_width_weights_have_sixteen_bits() -> None:
    assert built_in("H100", 8) == roofline("H100", 8, 16)


def test_a_cache_of_other_width_can_be_told() -> None:
    half = roofline("A100-80G", 8, kv_bytes_per_token=65_536)
    whole = roofline("A100-80G", 8)

    assert half.kv_tokens == pytest.approx(2 * whole.kv_tokens, abs=1)
    assert half.kv_read_s_per_token == pytest.approx(whole.kv_read_s_per_token / 2)


@given(
    st.sampled_from(sorted(GPUS)),
    st.sampled_from([8, 32, 70]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from([1, 2, 4]),
)
def test_twice_the_gpus_are_twice_as_fast_and_hold_more(
    gpu: str, size: int, bits: int, gpus: int
) -> None:
    try:
        one = roofline(gpu, size, bits, gpus=gpus)
    except ValueError:
        assume(False)
    two = roofline(gpu, size, bits, gpus=2 * gpus)

    assert two.prefill_s_per_token == pytest.approx(one.prefill_s_per_token / 2)
    assert two.decode_base_s == pytest.approx(one.decode_base_s / 2)
    assert two.kv_tokens > 2 * one.kv_tokens
    assert two.name == f"{2 * gpus}x{gpu}"


@pytest.mark.parametrize(
    ("gpu", "size", "bits", "gpus", "complaint"),
    [
        pytest.param("L4", 70, 16, 1, r"70B .* 16 bits \(140 GB\) do not fit 1 x L4", id="fit"),
        pytest.param("B200", 8, 16, 1, "no data sheet for GPU 'B200'", id="gpu"),
        pytest.param("L4", 0, 16, 1, "must be > 0", id="size"),
        pytest.param("L4", 8, 16, 0, "must be > 0", id="gpus"),
    ],
)
def test_what_cannot_be_is_refused(
    gpu: str, size: float, bits: int, gpus: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        roofline(gpu, size, bits, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        pytest.param("H200", "for GPU 'H200' the model's size must be given", id="not fitted"),
        pytest.param("B200", "no built-in profile for GPU 'B200'", id="unknown"),
    ],
)
def test_a_gpu_without_a_fitted_profile_says_what_is_missing(name: str, complaint: str) -> None:
    with pytest.raises(KeyError, match=complaint):
        built_in(name)


@pytest.mark.parametrize(
    ("constant", "value"),
    [("decode_base_s", 0.0), ("kv_tokens", 0), ("kv_read_s_per_token", -1.0)],
)
def test_impossible_constants_are_refused(constant: str, value: float) -> None:
    sound: dict[str, float] = {
        "prefill_s_per_token": 1e-4,
        "decode_base_s": 0.02,
        "kv_read_s_per_token": 0.0,
        "step_overhead_s": 0.0,
        "kv_tokens": 1000,
    }

    with pytest.raises(ValueError, match=constant):
        GpuProfile(name="x", **{**sound, constant: value})  # type: ignore[arg-type]  # one dict for all
