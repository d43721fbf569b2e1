"""GpuProfile: what an accelerator does with a model, and the built-in table of them.

One engine step that schedules `tokens` tokens while reading `kv` cached tokens takes

    step_overhead_s + max(decode_base_s, prefill_s_per_token * tokens) + kv_read_s_per_token * kv

seconds: a roofline in which the weights are read once a step (`decode_base_s`) or arithmetic
dominates (`prefill_s_per_token`), and attention reads the batch's KV cache.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """The constants of a step, and what fits, for one GPU (group) with one model."""

    name: str
    prefill_s_per_token: float
    decode_base_s: float
    kv_read_s_per_token: float
    step_overhead_s: float
    kv_tokens: int
    """KV cache capacity of the engine, in tokens."""
    max_batched_tokens: int = 2048
    """Tokens a step may schedule (vLLM's max_num_batched_tokens)."""
    max_num_seqs: int = 256
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for name in ("prefill_s_per_token", "decode_base_s", "kv_tokens", "max_batched_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, not {getattr(self, name)}")
        for name in ("kv_read_s_per_token", "step_overhead_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, not {getattr(self, name)}")


STEP_OVERHEAD_S = 0.002
KV_BYTES_PER_TOKEN_70B = 81_920
"""80 layers x 8 KV heads x 128 x 2 (K and V), 4 bits a value."""
BANDWIDTH_SHARE = 0.7
"""Share of the data-sheet bandwidth that attention reads reach."""


def _measured(
    name: str, prefill_us: float, decode_ms: float, bandwidth_gb_per_s: float, kv_tokens: int
) -> GpuProfile:
    return GpuProfile(
        name=name,
        prefill_s_per_token=prefill_us * 1e-6,
        decode_base_s=decode_ms * 1e-3 - STEP_OVERHEAD_S,
        kv_read_s_per_token=KV_BYTES_PER_TOKEN_70B / (bandwidth_gb_per_s * 1e9 * BANDWIDTH_SHARE),
        step_overhead_s=STEP_OVERHEAD_S,
        kv_tokens=kv_tokens,
    )


PROFILES: dict[str, GpuProfile] = {
    profile.name: profile
    for profile in (
        # Llama-3.1-70B, 4-bit weights and KV, one GPU an engine. Prefill and decode constants
        # fitted to the stage times published with HexGen-Flow (arXiv 2505.05286).
        _measured("A100-40G", 223, 22.3, 1555, 57_000),
        _measured("A100-80G", 223, 22.3, 2039, 545_000),
        _measured("H100-80G", 71, 11.3, 3350, 545_000),
        _measured("A800-80G", 84, 14.1, 2039, 545_000),
        _measured("A6000", 758, 36.2, 768, 155_000),
        _measured("L40S", 386, 40.2, 864, 155_000),
        _measured("A40", 677, 40.9, 696, 155_000),
        # Llama-3.1-8B in 16 bits on one L4: data-sheet arithmetic, 34,624 tokens of KV.
        GpuProfile(
            name="L4",
            prefill_s_per_token=240e-6,
            decode_base_s=0.067,
            kv_read_s_per_token=131_072 / (300e9 * BANDWIDTH_SHARE),
            step_overhead_s=STEP_OVERHEAD_S,
            kv_tokens=34_624,
        ),
    )
}
"""Built-in profiles by the name `backends.yaml` uses for `gpu`. `A100` alone means A100-40G."""

GPU_ALIASES = {"A100": "A100-40G", "H100": "H100-80G", "A800": "A800-80G"}


def built_in(name: str) -> GpuProfile:
    """Return the built-in profile of a GPU; KeyError names what there is."""
    try:
        return PROFILES[GPU_ALIASES.get(name, name)]
    except KeyError:
        known = ", ".join(sorted([*PROFILES, *GPU_ALIASES]))
        raise KeyError(f"no built-in profile for GPU '{name}' (known: {known})") from None
