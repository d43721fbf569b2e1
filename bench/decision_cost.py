"""What a decision costs, and how fast the simulator is, on this machine.

    python bench/decision_cost.py

A decision is one `Scheduler.handle`: here a call arrives at a queue that is already long, or a
running call ends and the next is chosen among all backends. CPU time of this process, medians.
"""

import sys
from random import Random
from statistics import median, quantiles
from time import perf_counter, process_time

from gateway.core.events import Arrived, Finished
from gateway.core.lengths import PRIOR
from gateway.core.policies import policy_from_name
from gateway.core.profiles import GpuProfile
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, InferenceRequest, RequestId
from gateway.sim.experiment import Cell, Workload, capacity_per_s, fleet, play

SAMPLES = 400


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


def decision_ms(backends: int, queued: int, policy: str) -> tuple[list[float], list[float]]:
    """Return milliseconds of arrivals and of endings, with that many backends and calls queued."""
    scheduler = Scheduler([_backend(n) for n in range(backends)], policy_from_name(policy))
    number = 0
    now = 0.0
    running: list[RequestId] = []

    def arrive() -> None:
        nonlocal number, now
        number += 1
        now += 0.001
        for command in scheduler.handle(Arrived(_request(number)), now):
            if hasattr(command, "decision"):
                running.append(command.request_id)

    while scheduler.waiting < queued:
        arrive()
    arrivals, endings = [], []
    for _ in range(SAMPLES):
        start = perf_counter()
        arrive()
        arrivals.append((perf_counter() - start) * 1000)
        ended = running.pop(0)
        now += 0.001
        start = perf_counter()
        commands = scheduler.handle(Finished(ended, 100), now)
        endings.append((perf_counter() - start) * 1000)
        running += [c.request_id for c in commands if hasattr(c, "decision")]
    return arrivals, endings


def main() -> int:
    """Print both tables."""
    print("| backends | queued | policy | arrival p50 ms | p99 | ending p50 ms | p99 |")
    print("|---|---|---|---|---|---|---|")
    for backends, queued in ((4, 100), (16, 1000), (64, 1000), (256, 10_000)):
        for policy in ("least_backlog+fcfs", "hexgen", "hexsage"):
            if policy == "least_backlog+fcfs" and queued > 1000:
                continue  # it never queues: nothing would be waiting
            queued_here = 0 if policy == "least_backlog+fcfs" else queued
            arrivals, endings = decision_ms(backends, queued_here, policy)
            print(
                f"| {backends} | {queued_here} | {policy} | {median(arrivals):.3f} "
                f"| {quantiles(arrivals, n=100)[98]:.3f} | {median(endings):.3f} "
                f"| {quantiles(endings, n=100)[98]:.3f} |",
                flush=True,
            )
    print()
    from loadgen.workloads.text2sql import text2sql

    workload = Workload.split("built-in", text2sql(Random(1), 200))
    backends_ = fleet(("A100", "A100", "A6000", "L40S"))
    rate = capacity_per_s(workload, backends_)
    for policy in ("least_backlog+fcfs", "hexgen", "hexsage"):
        cell = Cell(workload=workload, backends=backends_, policy=policy, rate_per_s=rate, seed=1)
        start = process_time()
        calls = len(play(cell).settled)
        print(f"simulator, {policy}: {calls / (process_time() - start):,.0f} calls a CPU second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
