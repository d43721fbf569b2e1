"""A probe says what it sees, when that changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.backends.engine_metrics import EngineMetrics, read_metrics
from gateway.backends.health import FAILURES_UNTIL_DOWN, Probe, Vitals
from gateway.emulator.server import serving
from tests.backends.fake_backend import FakeBackend, a_fake_backend, plain
from tests.e2e.processes import free_port
from tests.emulator.asgi import some_options

pytestmark = pytest.mark.anyio


class Watch:
    """What a probe said."""

    def __init__(self) -> None:
        self.said: list[Vitals | None] = []
        self.news = asyncio.Event()

    def __call__(self, vitals: Vitals | None) -> None:
        self.said.append(vitals)
        self.news.set()

    async def next(self) -> Vitals | None:
        async with asyncio.timeout(5):
            await self.news.wait()
        self.news.clear()
        return self.said[-1]


@asynccontextmanager
async def watching(
    engine: FakeBackend, *, api_key: str | None = None, interval_s: float = 0.05
) -> AsyncIterator[tuple[Probe, Watch]]:
    watch = Watch()
    probe = Probe("e", engine.url, watch, api_key=api_key, interval_s=interval_s, timeout_s=0.2)
    running = asyncio.ensure_future(probe.run())
    try:
        yield probe, watch
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_the_first_look_tells_models_context_and_cache() -> None:
    async with a_fake_backend(plain) as engine, watching(engine) as (_, watch):
        vitals = await watch.next()

        assert vitals is not None
        assert vitals.models == {"m1": 4096}
        assert vitals.metrics.kv_tokens == 16_000_000


async def test_an_engine_with_limits_of_its_own_tells_them() -> None:
    async with serving([some_options(kind="tgi", max_num_queued_reqs=7)]) as server:
        [port] = server.app.engines
        watch = Watch()
        probe = Probe("t", f"http://127.0.0.1:{port}", watch, has_info=True)
        running = asyncio.ensure_future(probe.run())
        vitals = await watch.next()
        running.cancel()
        await asyncio.wait([running])

    options = some_options(kind="tgi")
    assert vitals is not None
    assert vitals.models == {"m1": options.context_tokens}
    assert vitals.max_in_flight == 7
    assert vitals.metrics == EngineMetrics(0, 0, 0.0, options.kv_capacity_tokens)


async def test_nothing_new_is_said_while_nothing_changes() -> None:
    async with a_fake_backend(plain) as engine, watching(engine) as (_, watch):
        await watch.next()
        seen = len(engine.probes)
        while len(engine.probes) < seen + 9:  # noqa: ASYNC110 - the fake tells nobody
            await asyncio.sleep(0.01)

        assert len(watch.said) == 1


async def test_each_look_tells_how_many_calls_wait_in_the_engine() -> None:
    heard: list[int | None] = []
    enough = asyncio.Event()

    def hear(waiting: int | None) -> None:
        heard.append(waiting)
        if len(heard) == 3:
            enough.set()

    async with a_fake_backend(plain) as engine:
        probe = Probe("e", engine.url, lambda _: None, hear, interval_s=0.01)
        running = asyncio.ensure_future(probe.run())
        async with asyncio.timeout(5):
            await enough.wait()
        running.cancel()
        await asyncio.wait([running])

    assert len(set(heard)) == 1


async def test_an_engine_that_was_up_is_down_only_after_several_failures() -> None:
    """Case 156."""
    async with a_fake_backend(plain) as engine, watching(engine) as (_, watch):
        await watch.next()
        engine.is_healthy = False
        failed_from = len(engine.probes)
        assert await watch.next() is None

        assert len(engine.probes) - failed_from >= FAILURES_UNTIL_DOWN
        engine.is_healthy = True
        assert await watch.next() is not None


async def test_an_engine_that_is_not_ready_is_down_from_the_first_look() -> None:
    """Case 161."""
    async with a_fake_backend(plain) as engine:
        engine.is_healthy = False
        async with watching(engine) as (_, watch):
            assert await watch.next() is None
            engine.is_healthy = True
            assert await watch.next() is not None


async def test_one_that_is_down_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backends.health.DOWN_INTERVAL_S", 0.05)
    async with a_fake_backend(plain) as engine:
        engine.is_healthy = False
        async with watching(engine, interval_s=60.0) as (_, watch):
            assert await watch.next() is None
            engine.is_healthy = True
            assert await watch.next() is not None


async def test_a_suspect_is_down_at_once_and_up_after_one_good_look() -> None:
    async with a_fake_backend(plain) as engine, watching(engine) as (probe, watch):
        await watch.next()
        probe.suspect()
        assert watch.said[-1] is None
        assert await watch.next() is None or watch.said[-1] is not None
        await watch.next()
        assert watch.said[-1] is not None


async def test_the_log_says_when_an_engine_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.backends.health")
    async with a_fake_backend(plain) as engine, watching(engine) as (probe, watch):
        await watch.next()
        probe.suspect()  # no probe saw it fail
        await watch.next()
        while watch.said[-1] is None:
            await watch.next()
        engine.is_healthy = False
        while watch.said[-1] is not None:
            await watch.next()

    assert caplog.messages == [
        "backend e is up and lists 'm1'",
        "backend e is down: a call could not connect to it",
        "backend e is up and lists 'm1'",
        "backend e: probe failed: /health answered 503",
        f"backend e is down: {FAILURES_UNTIL_DOWN} probes failed",
    ]


async def test_the_log_says_why_an_engine_did_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    watch = Watch()
    probe = Probe("e", f"http://127.0.0.1:{port}", watch)
    running = asyncio.ensure_future(probe.run())
    assert await watch.next() is None
    running.cancel()
    await asyncio.wait([running])

    (told,) = caplog.messages
    assert told.startswith(f"backend e: probe failed: no connection to 127.0.0.1:{port} (")
    assert "ssl" not in told


async def test_an_engine_that_says_nothing_is_told_as_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fake_backend(plain) as engine:
        engine.slow_s["/health"] = 60.0
        async with watching(engine) as (_, watch):
            assert await watch.next() is None

    assert caplog.messages[0] == "backend e: probe failed: no answer in time"


async def test_a_key_goes_with_every_probe_and_a_wrong_one_is_no_death() -> None:
    """Case 143."""
    async with a_fake_backend(plain) as engine:
        engine.required_key = "right"
        async with watching(engine, api_key="right") as (_, watch):
            vitals = await watch.next()
            assert vitals is not None
            assert vitals.models == {"m1": 4096}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        pytest.param(
            'vllm:num_requests_running{engine="0"} 2.0\n'
            'vllm:num_requests_running{engine="1"} 3.0\n'
            'vllm:num_requests_waiting{engine="0"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
            'vllm:kv_cache_usage_perc{engine="1"} 0.5\n',
            EngineMetrics(5, 1, 0.5),
            id="now, two engines",
        ),
        pytest.param(
            "vllm:num_requests_running 2\nvllm:gpu_cache_usage_perc 0.25\n",
            EngineMetrics(2, None, 0.25),
            id="before 0.9",
        ),
        pytest.param(
            'vllm:cache_config_info{a="x\\"}y,",block_size="16",num_gpu_blocks="100"} 1.0 123\n',
            EngineMetrics(kv_tokens=1600),
            id="escapes and a timestamp",
        ),
        pytest.param(
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n',
            EngineMetrics(),
            id="blocks not known yet",
        ),
        pytest.param(
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n# EOF\n",
            EngineMetrics(),
            id="no numbers",
        ),
        pytest.param("<html>\n{}{}\nvllm:num_requests_running\n", EngineMetrics(), id="garbage"),
        pytest.param(
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n",
            EngineMetrics(1, 4),
            id="llama.cpp",
        ),
        pytest.param(
            "tgi_queue_size 4\ntgi_batch_current_size 2\ntgi_batch_current_max_tokens 500\n"
            "tgi_batch_max_total_tokens 2000\n",
            EngineMetrics(2, 4, 0.25, 2000),
            id="TGI",
        ),
        pytest.param(
            'sglang:num_running_reqs{model_name="m"} 3\nsglang:num_queue_reqs{} 1\n'
            "sglang:token_usage{} 0.5\n"
            'sglang:cache_config_info{num_pages="100",page_size="64"} 1\n',
            EngineMetrics(3, 1, 0.5, 6400),
            id="SGLang",
        ),
    ],
)
def test_metrics_of_all_generations_are_read(text: str, seen: EngineMetrics) -> None:
    """Cases 159 and 169; what is not said is not 0."""
    assert read_metrics(text) == seen


def a_cache(block_size: str, blocks: str) -> str:
    labels = f'block_size="{block_size}",num_gpu_blocks="{blocks}"'
    return f"vllm:cache_config_info{{{labels}}} 1"


@pytest.mark.parametrize(
    "text",
    [
        "tgi_batch_max_total_tokens -5",
        "tgi_batch_max_total_tokens 1e300",
        a_cache("\u00b2", "16"),
        a_cache("9" * 5000, "16"),
        a_cache("9" * 15, "9" * 15),
        "vllm:num_requests_waiting -1",
        "vllm:kv_cache_usage_perc NaN",
    ],
)
def test_what_no_engine_can_have_is_not_believed(text: str) -> None:
    assert read_metrics(text) == EngineMetrics()
