"""Vitals: how a worker is, which it says once a second for the gateway's metrics."""

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path

from gateway.runtime.lag import LoopLag
from gateway.telemetry.gauges import WorkerGauges
from gateway.telemetry.histogram import SHORT, Histogram
from gateway.workers.wire import Fields, Message, Up

EVERY_S = 1.0


class Vitals:
    """One worker's. Who replaces it has the same number, and one restart more."""

    def __init__(self, number: int = 0, restarts: int = 0) -> None:
        self._number = number
        self._restarts = restarts
        self._lag = LoopLag()
        self.connections: Callable[[], int] = int
        """Tells how many clients are connected. Whoever serves the worker knows."""

    def now(self) -> WorkerGauges:
        """Return them as they are; of its calls the scheduler process knows more."""
        return WorkerGauges(
            number=self._number,
            is_up=True,
            restarts=self._restarts,
            connections=self.connections(),
            memory_bytes=resident_bytes(),
            lag_s=self._lag.seconds,
        )

    async def keep_telling(self, say: Callable[[Message], None]) -> None:
        """Tell them now and every second, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lag.watch())
            while True:
                say(told(self.now()))
                await asyncio.sleep(EVERY_S)


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system has no /proc to say so."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def told(worker: WorkerGauges) -> Message:
    """Return how a worker is; the scheduler process knows its calls."""
    lag_s = worker.lag_s
    return [
        Up.VITALS,
        worker.number,
        worker.restarts,
        worker.connections,
        worker.memory_bytes,
        list(lag_s.counts),
        lag_s.total,
    ]


def read_told(fields: Fields) -> WorkerGauges:
    """Return how the worker is."""
    _, number, restarts, connections, memory_bytes, lag_counts, lag_total_s = fields
    lag_s = Histogram(SHORT)
    lag_s.counts, lag_s.total = lag_counts, lag_total_s
    return WorkerGauges(
        number=number,
        is_up=True,
        restarts=restarts,
        connections=connections,
        memory_bytes=memory_bytes,
        lag_s=lag_s,
    )
