"""What a decision costs, and how fast the simulator and the tuner's replay are, on this machine.

    python bench/decision_cost.py [decisions] [simulator] [tuner]

A decision is one `Scheduler.handle`: here a call arrives at a queue that is already long, or a
running call ends and the next is chosen among all backends. Everything is CPU time of a process,
but for the tuner's replay, which is what one waits for.
"""

import platform
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from random import Random
from statistics import median, quantiles
from time import perf_counter, process_time

from gateway import __version__
from gateway.compiled import form
from gateway.core.commands import Start
from gateway.core.events import Arrived, Finished
from gateway.core.lengths import PRIOR
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.profiles import GpuProfile
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, InferenceRequest, RequestId
from gateway.runtime.garbage import calm
from gateway.sim.experiment import Cell, Workload, capacity_per_s, fleet, measure_all, play
from gateway.tuner.search import HEXGEN_ALPHAS
from loadgen.workloads.text2sql import text2sql

SAMPLES = 400
SIZES = ((4, 100), (16, 1000), (64, 1000), (256, 10_000), (1000, 100_000))
FILL_S = 40.0
"""CPU seconds in which the queue is filled; what waits then is what is measured with."""
SEED = 1
REPLAYED = 10_000
"""Requests that the tuner's replay has in each run."""


def _backend(number: int) -> Backend:
    speed = 1 + number % 4
    return Backend(
        id=BackendId(f"b{number:04}"),
        models=frozenset({"m"}),
        profile=GpuProfile(
            name="x",
            prefill_s_per_token=1e-4 * speed,
            decode_base_s=0.02 * speed,
            kv_read_s_per_token=1e-7,
            step_overhead_s=0.002,
            kv_tokens=50_000,
        ),
    )


def _request(number: int) -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(f"r{number}"), model="m", prompt_tokens=500 + number % 3000, output=PRIOR
    )


def decision_ms(backends: int, queued: int, policy: str) -> tuple[int, list[float], list[float]]:
    """Return what waits, and milliseconds of arrivals and of endings, with that many backends.

    `queued` is how many shall wait; fewer do if to get there takes too long.
    """
    scheduler = Scheduler([_backend(n) for n in range(backends)], policy_from_name(policy))
    number = 0
    now = 0.0
    running: list[RequestId] = []

    def arrive() -> None:
        nonlocal number, now
        number += 1
        now += 0.001
        for command in scheduler.handle(Arrived(_request(number)), now):
            if isinstance(command, Start):
                running.append(command.request_id)

    filled_by = process_time() + FILL_S
    while scheduler.waiting < queued and process_time() < filled_by:
        arrive()
    waiting = scheduler.waiting
    arrivals, endings = [], []
    for _ in range(SAMPLES):
        start = process_time()
        arrive()
        arrivals.append((process_time() - start) * 1000)
        ended = running.pop(0)
        now += 0.001
        start = process_time()
        commands = scheduler.handle(Finished(ended, 100), now)
        endings.append((process_time() - start) * 1000)
        running += [c.request_id for c in commands if isinstance(c, Start)]
    return waiting, arrivals, endings


def decisions() -> None:
    """Print what arrivals and endings cost, with the garbage collector set as in the gateway."""
    calm()
    print("| backends | queued | policy | arrival p50 ms | p99 | ending p50 ms | p99 |")
    print("|---|---|---|---|---|---|---|")
    for backends, queued in SIZES:
        for policy in ("hexgen", "hexsage"):
            waiting, arrivals, endings = decision_ms(backends, queued, policy)
            print(
                f"| {backends} | {waiting} | {policy} | {median(arrivals):.3f} "
                f"| {quantiles(arrivals, n=100)[98]:.3f} | {median(endings):.3f} "
                f"| {quantiles(endings, n=100)[98]:.3f} |",
                flush=True,
            )


def _cell(policy: str) -> Cell:
    """Return text-to-SQL workflows at the fleet's capacity."""
    workload = Workload.split("built-in", text2sql(Random(SEED), 200))
    backends = fleet(("A100", "A100", "A6000", "L40S"))
    rate_per_s = capacity_per_s(workload, backends)
    return Cell(
        workload=workload, backends=backends, policy=policy, rate_per_s=rate_per_s, seed=SEED
    )


def simulator() -> None:
    """Print how many calls a second of CPU simulates."""
    for policy in ("least_backlog+fcfs", "hexgen", "hexsage"):
        cell = _cell(policy)
        rates = []
        for _ in range(3):
            start = process_time()
            calls = len(play(cell).settled)
            rates.append(calls / (process_time() - start))
        print(f"simulator, {policy}: {max(rates):,.0f} calls a CPU second, the best of 3")


def tuner() -> None:
    """Print how long ten settings take on ten thousand requests, in two processes."""
    cell = _cell("hexgen")
    calls_each = len(play(cell).settled) / cell.count
    cell = replace(cell, count=round(REPLAYED / calls_each))
    cells = [replace(cell, settings=PolicySettings(alpha=alpha)) for alpha in HEXGEN_ALPHAS]
    with ProcessPoolExecutor(2) as pool:
        measure_all([replace(cell, count=10)] * 2, pool)  # the workers are up
        start = perf_counter()
        scores = measure_all(cells, pool)
        took_s = perf_counter() - start
    calls = sum(score.calls for score in scores)
    print(f"tuner: {len(cells)} alphas, {calls:,} requests in all, {took_s:.1f} s on 2 processes")


PARTS: dict[str, Callable[[], None]] = {
    "decisions": decisions,
    "simulator": simulator,
    "tuner": tuner,
}


def main() -> int:
    """Print the parts that were asked for."""
    print(f"HexSage {__version__} ({form()}), Python {platform.python_version()}, seed {SEED}\n")
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
