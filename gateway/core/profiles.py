"""GpuProfile: what an accelerator does with a model, and the built-in table of them.

One engine step that schedules `tokens` tokens while reading `kv` cached tokens takes

    step_overhead_s + max(decode_base_s, prefill_s_per_token * tokens) + kv_read_s_per_token * kv

seconds: a roofline in which the weights are read once a step (`decode_base_s`) or arithmetic
dominates (`prefill_s_per_token`), and attention reads the batch's KV cache.

Two ways to a profile without measuring: a table of constants fitted to published stage times (one
model, seven GPUs), and `roofline`, which computes them from data sheets for any model size. Both
are only where a backend starts: what its engine is seen to do corrects them (`calibration`), and
`hexsage profile URL` measures one.
"""

from dataclasses import dataclass

from gateway.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile(Record):
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

GPU_ALIASES = {
    "A100": "A100-40G",
    "A800": "A800-80G",
    "H100": "H100-80G",
    "H200": "H200-141G",
    "MI300X": "MI300X-192G",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """An accelerator by its data sheet."""

    memory_gb: float
    bandwidth_gb_per_s: float
    dense_16bit_tflops: float


GPUS: dict[str, Gpu] = {
    "H100-80G": Gpu(memory_gb=80, bandwidth_gb_per_s=3350, dense_16bit_tflops=989),
    "H200-141G": Gpu(memory_gb=141, bandwidth_gb_per_s=4800, dense_16bit_tflops=989),
    "A100-40G": Gpu(memory_gb=40, bandwidth_gb_per_s=1555, dense_16bit_tflops=312),
    "A100-80G": Gpu(memory_gb=80, bandwidth_gb_per_s=2039, dense_16bit_tflops=312),
    "A800-80G": Gpu(memory_gb=80, bandwidth_gb_per_s=2039, dense_16bit_tflops=312),
    "L40S": Gpu(memory_gb=48, bandwidth_gb_per_s=864, dense_16bit_tflops=362),
    "L4": Gpu(memory_gb=24, bandwidth_gb_per_s=300, dense_16bit_tflops=121),
    "A10": Gpu(memory_gb=24, bandwidth_gb_per_s=600, dense_16bit_tflops=125),
    "A6000": Gpu(memory_gb=48, bandwidth_gb_per_s=768, dense_16bit_tflops=155),
    "A40": Gpu(memory_gb=48, bandwidth_gb_per_s=696, dense_16bit_tflops=150),
    "RTX-4090": Gpu(memory_gb=24, bandwidth_gb_per_s=1008, dense_16bit_tflops=165),
    "MI300X-192G": Gpu(memory_gb=192, bandwidth_gb_per_s=5300, dense_16bit_tflops=1307),
}
"""Vendors' figures: dense 16-bit matrix throughput, without sparsity."""

ARITHMETIC_SHARE = 0.5
"""Share of the data-sheet arithmetic that prefill reaches."""
MEMORY_SHARE = 0.9
"""Share of the memory that an engine takes (vLLM's gpu_memory_utilization)."""
ACTIVATIONS_GB = 2.0
"""What of it goes to activations and graphs, on each GPU."""
MIN_KV_TOKENS = 2048
"""An engine that cannot hold this much context is of no use."""
KV_BYTES_PER_TOKEN_16BIT = {8: 131_072, 32: 262_144, 70: 327_680}
"""By billions of parameters: layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes, for the shapes of
Llama-3.1-8B (32 layers), Qwen2.5-32B (64) and Llama-3.1-70B (80)."""


def roofline(
    gpu: str,
    parameters_billions: float,
    weight_bits: int = 16,
    *,
    kv_bytes_per_token: int | None = None,
    gpus: int = 1,
) -> GpuProfile:
    """Return what data sheets promise for a dense model on one GPU, or split over `gpus`.

    A token costs two operations a parameter, a decode step reads every weight once. What splitting
    costs in communication is not counted. ValueError if the GPU is unknown or the model does not
    fit; without `kv_bytes_per_token` that of the known model nearest in size is taken.
    """
    if parameters_billions <= 0 or weight_bits <= 0 or gpus < 1:
        raise ValueError("parameters_billions, weight_bits and gpus must be > 0")
    name = GPU_ALIASES.get(gpu, gpu)
    sheet = GPUS.get(name)
    if sheet is None:
        known = ", ".join(sorted({*GPUS, *GPU_ALIASES}))
        raise ValueError(f"no data sheet for GPU '{gpu}' (known: {known})")
    if kv_bytes_per_token is None:
        kv_bytes_per_token = KV_BYTES_PER_TOKEN_16BIT[
            min(KV_BYTES_PER_TOKEN_16BIT, key=lambda size: abs(size - parameters_billions))
        ]
    weights_gb = parameters_billions * weight_bits / 8
    kv_gb = gpus * (sheet.memory_gb * MEMORY_SHARE - ACTIVATIONS_GB) - weights_gb
    kv_tokens = int(kv_gb * 1e9 / kv_bytes_per_token)
    if kv_tokens < MIN_KV_TOKENS:
        raise ValueError(
            f"{parameters_billions:g}B parameters at {weight_bits} bits ({weights_gb:.0f} GB) "
            f"do not fit {gpus} x {name} ({sheet.memory_gb:g} GB): use more GPUs or fewer bits"
        )
    bytes_per_s = gpus * sheet.bandwidth_gb_per_s * 1e9 * BANDWIDTH_SHARE
    operations_per_s = gpus * sheet.dense_16bit_tflops * 1e12 * ARITHMETIC_SHARE
    return GpuProfile(
        name=name if gpus == 1 else f"{gpus}x{name}",
        prefill_s_per_token=2e9 * parameters_billions / operations_per_s,
        decode_base_s=weights_gb * 1e9 / bytes_per_s,
        kv_read_s_per_token=kv_bytes_per_token / bytes_per_s,
        step_overhead_s=STEP_OVERHEAD_S,
        kv_tokens=kv_tokens,
    )


def built_in(
    name: str,
    model_size_b: float | None = None,
    weight_bits: int | None = None,
    gpus: int = 1,
) -> GpuProfile:
    """Return the built-in profile of a GPU: by `roofline` if the model's size is given.

    Without a size the table answers; KeyError names what there is, ValueError what does not fit.
    """
    if model_size_b is not None:
        return roofline(name, model_size_b, weight_bits or 16, gpus=gpus)
    full_name = GPU_ALIASES.get(name, name)
    try:
        return PROFILES[full_name]
    except KeyError:
        if full_name in GPUS:
            raise KeyError(f"for GPU '{name}' the model's size must be given") from None
        known = ", ".join(sorted({*PROFILES, *GPUS, *GPU_ALIASES}))
        raise KeyError(f"no built-in profile for GPU '{name}' (known: {known})") from None
