"""What TGI 3.3.6-dev0 says of itself at /metrics, in Prometheus' text format (pure).

Seconds are the engine's. There is no gauge of KV use: the tokens that the batch may reach stand
beside the most that may be in a batch.
"""

from collections.abc import Iterator

from gateway.emulator.metrics import EngineCounters, EngineStatus, Histogram

_SECONDS = tuple(0.0001 * 1.5**power for power in range(1, 36))
_TIMES = {
    "e2e_request_latency_seconds": "tgi_request_duration",
    "request_queue_time_seconds": "tgi_request_queue_duration",
    "request_inference_time_seconds": "tgi_request_inference_duration",
    "request_time_per_output_token_seconds": "tgi_request_mean_time_per_token_duration",
}
_TOKENS = {
    "request_prompt_tokens": "tgi_request_input_length",
    "request_generation_tokens": "tgi_request_generated_tokens",
    "request_params_max_tokens": "tgi_request_max_new_tokens",
}
"""The engine's own names for what it observes -> TGI's."""


def fresh_counters(max_total_tokens: int) -> EngineCounters:
    """Return counters with TGI's histograms: token counts in a hundred steps of the limit."""
    steps = tuple(max_total_tokens / 100 * number for number in range(1, 101))
    return EngineCounters(
        finished=dict.fromkeys(("stop", "length", "stop_sequence", "abort"), 0),
        histograms={
            **{name: Histogram(_SECONDS) for name in _TIMES},
            **{name: Histogram(steps) for name in _TOKENS},
        },
    )


def exposition(status: EngineStatus, invalid: int) -> str:
    """Return the metrics page; `invalid`: requests that did not pass the validation."""
    return "\n".join(_lines(status, invalid)) + "\n"


def _lines(status: EngineStatus, invalid: int) -> Iterator[str]:
    counters = status.counters
    success = sum(counters.finished.values())
    seen = success + counters.rejections + invalid + status.running + status.waiting
    yield from _one("tgi_request_count", "counter", seen)
    yield from _one("tgi_request_success", "counter", success)
    yield "# TYPE tgi_request_failure counter"
    for reason, count in (("overloaded", counters.rejections), ("validation", invalid)):
        yield f'tgi_request_failure{{err="{reason}"}} {count}'
    yield from _one("tgi_queue_size", "gauge", status.waiting)
    yield from _one("tgi_batch_current_size", "gauge", status.running)
    yield from _one("tgi_batch_current_max_tokens", "gauge", status.kv_reserved_tokens)
    yield from _one("tgi_batch_max_total_tokens", "gauge", status.blocks * status.block_tokens)
    for name, histogram in counters.histograms.items():
        own = _TIMES.get(name) or _TOKENS[name]
        yield f"# TYPE {own} histogram"
        yield from histogram.lines(own, "")


def _one(name: str, kind: str, value: int) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name} {value}"
