"""How a worker is, as it says itself."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from gateway.telemetry.gauges import WorkerGauges
from gateway.telemetry.histogram import SHORT, Histogram
from gateway.workers import vitals
from gateway.workers.vitals import Vitals, resident_bytes
from gateway.workers.wire import Message
from tests.virtual_time import run_in_virtual_time
from tests.workers.test_wire import over


def test_what_it_says_is_what_is_heard() -> None:
    lag_s = Histogram(SHORT)
    lag_s.observe(0.004)
    lag_s.observe(9.0)
    worker = WorkerGauges(
        number=3, is_up=True, restarts=2, connections=40, memory_bytes=80 << 20, lag_s=lag_s
    )

    came = vitals.read_told(over(vitals.told(worker)))

    assert (came.lag_s.counts, came.lag_s.total) == (lag_s.counts, lag_s.total)
    assert replace(came, lag_s=lag_s) == worker


def test_it_says_so_at_once_and_every_second() -> None:
    heard: list[tuple[float, Message]] = []
    own = Vitals(number=1, restarts=2)
    own.connections = lambda: len(heard)

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(2.5):
                await own.keep_telling(lambda said: heard.append((loop.time(), said)))

    run_in_virtual_time(listen())

    told = [vitals.read_told(over(said)) for _, said in heard]
    assert [at for at, _ in heard] == pytest.approx([0.0, 1.0, 2.0])
    assert [(one.number, one.restarts, one.connections) for one in told] == [
        (1, 2, 0),
        (1, 2, 1),
        (1, 2, 2),
    ]
    assert sum(told[-1].lag_s.counts) > 10


def test_an_interpreter_holds_more_than_ten_and_less_than_thousands_of_megabytes() -> None:
    assert 10 << 20 < resident_bytes() < 4 << 30
