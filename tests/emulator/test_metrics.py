"""The metrics page: vLLM's names, in a format that parses, with sums that add up."""

from prometheus_client.parser import text_string_to_metric_families

from gateway.emulator.metrics import EngineCounters, EngineStatus, Histogram, exposition

NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:engine_sleep_state",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:admission_rejections",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:cache_config_info",
}


def a_status(model: str = "m1", counters: EngineCounters | None = None) -> EngineStatus:
    """Return a busy engine's status."""
    return EngineStatus(
        counters=counters or EngineCounters(),
        model=model,
        running=3,
        waiting=2,
        kv_share=0.5,
        kv_reserved_tokens=0,
        generating_tokens=7,
        preemptions=1,
        prefix_queries=100,
        prefix_hits=32,
        block_tokens=16,
        blocks=1000,
        prefix_caching=True,
        http_requests=0,
    )


def values(status: EngineStatus) -> dict[str, float]:
    """Return samples by name; of several series the last."""
    families = text_string_to_metric_families(exposition(status))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_every_name_is_there_and_parses() -> None:
    families = list(text_string_to_metric_families(exposition(a_status())))

    assert {family.name for family in families} == NAMES
    assert all(family.documentation for family in families)


def test_running_calls_count_with_those_that_are_gone() -> None:
    counters = EngineCounters(generation_tokens=100)

    assert values(a_status(counters=counters))["vllm:generation_tokens_total"] == 107


def test_the_cache_size_is_in_the_config() -> None:
    [info] = [
        sample.labels
        for family in text_string_to_metric_families(exposition(a_status()))
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]

    assert (info["block_size"], info["num_gpu_blocks"]) == ("16", "1000")
    assert info["enable_prefix_caching"] == "True"


def test_any_model_name_is_a_label() -> None:
    page = exposition(a_status(model='org/"odd"\\name'))

    [running] = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:num_requests_running"
    ]
    assert running.labels["model_name"] == 'org/"odd"\\name'


def test_a_histogram_counts_up_to_and_including_its_edges() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, times=10)

    assert list(histogram.lines("h", 'a="b"')) == [
        'h_bucket{a="b",le="1.0"} 2.0',
        'h_bucket{a="b",le="2.0"} 13.0',
        'h_bucket{a="b",le="+Inf"} 14.0',
        'h_count{a="b"} 14.0',
        'h_sum{a="b"} 32.0',
    ]
