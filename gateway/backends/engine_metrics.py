"""What an engine says of itself in Prometheus' text format (pure).

Names by generation of vLLM: `gpu_cache_usage_perc` became `kv_cache_usage_perc` in 0.9. There is
one series for each data-parallel engine, so gauges are summed (shares averaged). TGI has no gauge
of KV use: what its batch has reserved, of what it may reserve, stands for it.
"""

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

RUNNING = (
    "vllm:num_requests_running",
    "tgi_batch_current_size",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
WAITING = (
    "vllm:num_requests_waiting",
    "tgi_queue_size",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
)
KV_SHARE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
KV_USED = ("tgi_batch_current_max_tokens",)
KV_TOKENS = ("tgi_batch_max_total_tokens", "sglang:max_total_num_tokens")
CACHE_CONFIG = {
    "vllm:cache_config_info": ("block_size", "num_gpu_blocks"),
    "sglang:cache_config_info": ("page_size", "num_pages"),
}
"""By their labels: tokens in a block, and blocks."""
MAX_FIGURE = 10**15
"""No engine has more of anything: what says so, or less than nothing, is broken."""
_WHOLE = re.compile(r"[0-9]{1,15}")
_READ = frozenset({*RUNNING, *WAITING, *KV_SHARE, *KV_USED, *KV_TOKENS, *CACHE_CONFIG})


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One look at an engine. None: it does not say, which is not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_share: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    kv_tokens: int | None = None
    """Capacity of its KV cache."""


def read_metrics(text: str) -> EngineMetrics:
    """Return what the exposition says; unknown and broken lines are skipped."""
    sums: dict[str, list[float]] = {}
    kv_tokens = 0
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] not in _READ:
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if not 0 <= value <= MAX_FIGURE:
            continue
        if sample[1] in CACHE_CONFIG:
            kv_tokens += _cache_tokens(sample[2] or "", *CACHE_CONFIG[sample[1]])
        else:
            sums.setdefault(sample[1], []).append(value)
    shares = _first(sums, KV_SHARE)
    kv_share = sum(shares) / len(shares) if shares else None
    kv_tokens = kv_tokens or _total(sums, KV_TOKENS) or 0
    used = _total(sums, KV_USED)
    if kv_share is None and used is not None and kv_tokens:
        kv_share = used / kv_tokens
    return EngineMetrics(
        running=_total(sums, RUNNING),
        waiting=_total(sums, WAITING),
        kv_share=kv_share,
        kv_tokens=kv_tokens or None,
    )


def _first(sums: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((sums[name] for name in names if name in sums), [])


def _total(sums: dict[str, list[float]], names: tuple[str, ...]) -> int | None:
    values = _first(sums, names)
    return int(sum(values)) if values else None


def _cache_tokens(labels: str, size_label: str, count_label: str) -> int:
    said = dict(_LABEL.findall(labels))
    block_tokens, blocks = said.get(size_label, ""), said.get(count_label, "")
    if not (_WHOLE.fullmatch(block_tokens) and _WHOLE.fullmatch(blocks)):
        return 0
    tokens = int(block_tokens) * int(blocks)
    return tokens if tokens <= MAX_FIGURE else 0
