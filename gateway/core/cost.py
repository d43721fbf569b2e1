"""Seconds for a call on a backend, from the backend's profile."""

from gateway.core.profiles import GpuProfile


def prefill_s(profile: GpuProfile, fresh_tokens: float) -> float:
    """Return the time an idle engine needs to read `fresh_tokens` prompt tokens."""
    steps = max(-(-fresh_tokens // profile.max_batched_tokens), 1)
    return steps * profile.step_overhead_s + max(
        profile.decode_base_s, profile.prefill_s_per_token * fresh_tokens
    )


def step_s(profile: GpuProfile, batch: float, context_tokens: float) -> float:
    """Return the time of one decode step of `batch` calls that read `context_tokens` of KV."""
    return (
        profile.step_overhead_s
        + max(profile.decode_base_s, profile.prefill_s_per_token * batch)
        + profile.kv_read_s_per_token * context_tokens
    )


def unloaded_s(
    profile: GpuProfile, fresh_tokens: float, prompt_tokens: float, output_tokens: float
) -> float:
    """Return the time of a call that has the engine to itself.

    `fresh_tokens` of the prompt must be computed; the rest is in the prefix cache.
    """
    decode_steps = max(output_tokens - 1, 0.0)
    return prefill_s(profile, fresh_tokens) + decode_steps * step_s(
        profile, 1, prompt_tokens + output_tokens / 2
    )


def average(profiles: list[GpuProfile]) -> GpuProfile:
    """Return a fictitious GPU with the mean constants of several (at least one)."""
    count = len(profiles)
    return GpuProfile(
        name="average",
        prefill_s_per_token=sum(p.prefill_s_per_token for p in profiles) / count,
        decode_base_s=sum(p.decode_base_s for p in profiles) / count,
        kv_read_s_per_token=sum(p.kv_read_s_per_token for p in profiles) / count,
        step_overhead_s=sum(p.step_overhead_s for p in profiles) / count,
        kv_tokens=sum(p.kv_tokens for p in profiles) // count,
        max_batched_tokens=min(p.max_batched_tokens for p in profiles),
    )
