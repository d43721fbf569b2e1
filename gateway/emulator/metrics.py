"""What vLLM 0.32 says of itself at /metrics, in Prometheus' text format (pure).

Seconds are the engine's: a run at `--speed 20` reports what an engine of normal speed would.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

_TIME_TO_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TIME_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
_TIME_OF_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)

_HISTOGRAMS = {
    "request_prompt_tokens": (_TOKENS, "Number of prefill tokens processed."),
    "request_generation_tokens": (_TOKENS, "Number of generation tokens processed."),
    "request_params_n": (_CHOICES, "Histogram of the n request parameter."),
    "request_params_max_tokens": (_TOKENS, "Histogram of the max_tokens request parameter."),
    "time_to_first_token_seconds": (
        _TIME_TO_FIRST,
        "Histogram of time to first token in seconds.",
    ),
    "inter_token_latency_seconds": (
        _TIME_PER_TOKEN,
        "Histogram of inter-token latency in seconds.",
    ),
    "request_time_per_output_token_seconds": (
        _TIME_PER_TOKEN,
        "Histogram of time_per_output_token_seconds per request.",
    ),
    "e2e_request_latency_seconds": (
        _TIME_OF_REQUEST,
        "Histogram of e2e request latency in seconds.",
    ),
    "request_queue_time_seconds": (
        _TIME_OF_REQUEST,
        "Histogram of time spent in WAITING phase for request.",
    ),
    "request_inference_time_seconds": (
        _TIME_OF_REQUEST,
        "Histogram of time spent in RUNNING phase for request.",
    ),
    "request_prefill_time_seconds": (
        _TIME_OF_REQUEST,
        "Histogram of time spent in PREFILL phase for request.",
    ),
    "request_decode_time_seconds": (
        _TIME_OF_REQUEST,
        "Histogram of time spent in DECODE phase for request.",
    ),
    "request_num_preemptions": (
        _PREEMPTIONS,
        "Histogram of the number of times a request was preempted.",
    ),
    "request_prefill_kv_computed_tokens": (
        _TOKENS,
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
}
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts by bucket."""

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of the same value."""
        self._counts[bisect_left(self._edges, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Yield its samples."""
        total = 0
        lead = f"{labels}," if labels else ""
        for edge, count in zip((*self._edges, float("inf")), self._counts, strict=True):
            total += count
            le = "+Inf" if edge == float("inf") else str(edge)
            yield f'{name}_bucket{{{lead}le="{le}"}} {total}.0'
        yield f"{name}_count{{{labels}}} {total}.0"
        yield f"{name}_sum{{{labels}}} {self._sum}"


@dataclass(slots=True)
class EngineCounters:
    """What has happened in one engine since it started."""

    prompt_tokens: int = 0
    """Of prompts that were computed whole."""
    cached_tokens: int = 0
    """Of those, found in the prefix cache."""
    generation_tokens: int = 0
    """Of calls that are gone; the running ones' come on top."""
    rejections: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(edges) for name, (edges, _) in _HISTOGRAMS.items()}
    )

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count an observation, if the engine has a histogram for it."""
        histogram = self.histograms.get(name)
        if histogram is not None:
            histogram.observe(value, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One look at an engine."""

    counters: EngineCounters
    model: str
    running: int
    waiting: int
    kv_share: float
    """Of the KV cache in use, 0 to 1."""
    kv_reserved_tokens: int
    """Of the KV cache in use, or promised to running calls."""
    generating_tokens: int
    """Generated so far by calls that are still there."""
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    block_tokens: int
    blocks: int
    prefix_caching: bool
    http_requests: int
    """Requests being served."""


def exposition(status: EngineStatus) -> str:
    """Return the metrics page."""
    return "\n".join(_lines(status)) + "\n"


def _lines(status: EngineStatus) -> Iterator[str]:
    counters = status.counters
    model = status.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine="0",model_name="{model}"'

    def one(name: str, kind: str, help: str, value: float) -> Iterator[str]:
        yield from _head(name, kind, help)
        yield f"vllm:{name}{{{labels}}} {float(value)}"

    yield from one(
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        status.running,
    )
    yield from one(
        "num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        status.waiting,
    )
    yield from _head(
        "num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason."
    )
    for reason, waiting in (("capacity", status.waiting), ("deferred", 0)):
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {waiting}.0'
    yield from _head("engine_sleep_state", "gauge", "Engine sleep state.")
    for state in ("awake", "weights_offloaded", "discard_all"):
        awake = 1.0 if state == "awake" else 0.0
        yield f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {awake}'
    yield from one(
        "kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        status.kv_share,
    )
    for name, help, value in (
        (
            "prefix_cache_queries_total",
            "Prefix cache queries, in terms of number of queried tokens.",
            status.prefix_queries,
        ),
        (
            "prefix_cache_hits_total",
            "Prefix cache hits, in terms of number of cached tokens.",
            status.prefix_hits,
        ),
        (
            "num_preemptions_total",
            "Cumulative number of preemption from the engine.",
            status.preemptions,
        ),
        ("prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens),
        (
            "prompt_tokens_cached_total",
            "Number of cached prompt tokens (local + external).",
            counters.cached_tokens,
        ),
        (
            "generation_tokens_total",
            "Number of generation tokens processed.",
            counters.generation_tokens + status.generating_tokens,
        ),
    ):
        yield from one(name, "counter", help, value)
    yield from _head(
        "request_success_total", "counter", "Count of successfully processed requests."
    )
    for reason, count in counters.finished.items():
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}.0'
    yield from _head(
        "admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
    )
    for reason, count in (
        ("max_num_queued_reqs", counters.rejections),
        ("max_num_queued_tokens", 0),
    ):
        yield (
            f'vllm:admission_rejections_total{{model_name="{model}",reason="{reason}"}} {count}.0'
        )
    for name, histogram in counters.histograms.items():
        yield from _head(name, "histogram", _HISTOGRAMS[name][1])
        yield from histogram.lines(f"vllm:{name}", labels)
    yield from _head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    yield (
        f'vllm:cache_config_info{{block_size="{status.block_tokens}",cache_dtype="auto",'
        f'enable_prefix_caching="{status.prefix_caching}",engine="0",'
        f'kv_cache_size_tokens="{status.blocks * status.block_tokens}",'
        f'num_gpu_blocks="{status.blocks}"}} 1.0'
    )


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {help}"
    yield f"# TYPE vllm:{name} {kind}"
