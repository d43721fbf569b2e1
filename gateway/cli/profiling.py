"""From a handful of timed calls to a profile (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gateway.core.profiles import STEP_OVERHEAD_S

MIN_DECODE_BASE_S = 1e-4
MIN_PREFILL_S_PER_TOKEN = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One streamed call, token counts as the engine told them."""

    batch: int
    """Calls that ran side by side, this one included."""
    prompt_tokens: int
    output_tokens: int
    first_token_s: float
    total_s: float

    @property
    def step_s(self) -> float:
        """Mean time between two tokens."""
        return (self.total_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def context_tokens(self) -> float:
        """What attention read in each step, all calls side by side taken together."""
        return self.batch * (self.prompt_tokens + self.output_tokens / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The constants of `GpuProfile` that can be seen from outside."""

    prefill_s_per_token: float
    decode_base_s: float
    kv_read_s_per_token: float
    step_overhead_s: float = STEP_OVERHEAD_S


def fit(reading: Sequence[TimedCall], writing: Sequence[TimedCall]) -> Measured:
    """Return the constants that explain the calls.

    `reading`: lone calls with prompts of at least two lengths; the slope of their first-token
    times is the prefill, so the way there and back cancels out. `writing`: calls with many output
    tokens at several batches and contexts; the step is a line over the context.
    """
    first_s = _medians([(call.prompt_tokens, call.first_token_s) for call in reading])
    if len(first_s) < 2:
        raise ValueError("prefill needs prompts of two lengths")
    if not writing:
        raise ValueError("decoding needs calls with more than one output token")
    # The shortest may be bound by reading the weights: the slope is taken between the longest.
    (short, short_s), (long, long_s) = first_s[-2:]
    steps = _medians([(call.context_tokens, call.step_s) for call in writing])
    base_s, slope_s = _line(steps)
    return Measured(
        prefill_s_per_token=max((long_s - short_s) / (long - short), MIN_PREFILL_S_PER_TOKEN),
        decode_base_s=max(base_s - STEP_OVERHEAD_S, MIN_DECODE_BASE_S),
        kv_read_s_per_token=slope_s,
    )


def yaml_block(measured: Measured, kv_tokens: int | None) -> str:
    """Return the `profile:` of a backend in backends.yaml."""
    lines = [
        "profile:",
        f"  prefill_tokens_per_s: {1 / measured.prefill_s_per_token:.0f}",
        f"  decode_base_s: {measured.decode_base_s:.5f}",
        f"  kv_read_s_per_token: {measured.kv_read_s_per_token:.3e}",
        f"  step_overhead_s: {measured.step_overhead_s}",
    ]
    if kv_tokens is None:
        lines.append("  kv_tokens:  # the server does not say: fill in its KV cache, in tokens")
    else:
        lines.append(f"  kv_tokens: {kv_tokens}")
    return "\n".join(lines) + "\n"


def _medians(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the median y of points whose x are within a few percent of each other."""
    found: list[list[tuple[float, float]]] = []
    for point in sorted(points):
        if found and point[0] <= found[-1][0][0] * 1.1:
            found[-1].append(point)
        else:
            found.append([point])
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in found]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope (>= 0) of the least-squares line."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return mean_y - slope * mean_x, slope
