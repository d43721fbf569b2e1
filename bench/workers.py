"""What several workers bring: one process and `--workers N` in one run, over all cores.

    python -m bench.workers --workers 2 --rounds 5

Gateway, load client and backend (both in C, compiled here) share all cores of the machine, so the
throughput of a gateway of several processes ends where the machine is full: the table says how full
it was, and what a request cost in each kind of process. Compare inside one run only.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.data_plane_load import SEEN_PROMPTS, Case, Rig
from bench.data_plane_processes import Process
from bench.data_plane_targets import Place, Target, hexsage

CASES: Mapping[str, Case] = {
    "plain-1": Case(requests=2000, options={"connections": 1}),
    "plain-64": Case(requests=6000, options={"connections": 64}),
    "plain-256": Case(requests=12_000, options={"connections": 256}),
    "burst-16": Case(requests=160, options={"connections": 16, "stream": 1, "chunks": 200}),
}
ROLES = ("worker", "scheduler")
COLUMNS = (
    *("case", "workers", "requests/s", "against 1", "CPU ms a request", "of it workers"),
    *("scheduler", "busy cores", "p50 ms", "p99 ms"),
)
Figures = dict[str, float]


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", default="2", help="such as 2,3 (default 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    cores = set(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="workers-") as name:
        folder = Path(name)
        rig = Rig(folder, cores)
        rig.start()
        place = Place(folder=folder, peers=folder, backend_port=rig.backend_port, cores=cores)
        counts = [1, *(int(word) for word in options.workers.split(","))]
        targets = {count: _gateway(place, count) for count in counts}
        try:
            seen = _rounds(rig, targets, options.cases.split(","), options.rounds)
        finally:
            rig.backend.stop()
    _print(seen, len(cores), options.rounds)
    return 0


def _gateway(place: Place, workers: int) -> Target:
    target = hexsage(place, f"workers-{workers}")
    target.process.command += ["--workers", str(workers)]
    return target


def _rounds(
    rig: Rig, targets: Mapping[int, Target], cases: Sequence[str], rounds: int
) -> dict[tuple[str, int], list[Figures]]:
    """Run every case before every gateway in each round, one right after the other.

    All are there all the time: a machine that is slower for a minute is so for each of them.
    """
    seen: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    order = list(targets.items())
    try:
        for target in targets.values():
            target.process.start()
            rig.warm_up(target)
        for _ in range(rounds):
            for case in cases:
                for count, target in order:
                    rig.load(target.port, 500, {**CASES[case].options, "prompts": SEEN_PROMPTS})
                    seen[case, count].append(_measured(rig, target, CASES[case]))
            order.reverse()
    finally:
        for target in targets.values():
            target.process.stop()
    return seen


def _measured(rig: Rig, target: Target, case: Case) -> Figures:
    before, busy = _cpu_by_role(target.process), _busy_s()
    began_at = time.perf_counter()
    result = rig.measure(target, case)
    took_s = time.perf_counter() - began_at
    after = _cpu_by_role(target.process)
    result["busy_cores"] = (_busy_s() - busy) / took_s
    result["per_s"] = case.requests / took_s
    for role, spent_s in after.items():
        result[f"{role}_ms"] = (spent_s - before.get(role, 0.0)) * 1e3 / case.requests
    return result


def _cpu_by_role(process: Process) -> dict[str, float]:
    """Return the CPU seconds of each kind of child."""
    spent: dict[str, float] = defaultdict(float)
    for pid in process.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
            if len(words) > 1 and words[-2] in ROLES:
                spent[words[-2]] += time.clock_gettime((~pid << 3) | 2)
        except OSError:
            continue  # it has just ended
    return spent


def _busy_s() -> float:
    """Return the CPU seconds that the whole machine has spent on anything."""
    with Path("/proc/stat").open(encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _print(seen: Mapping[tuple[str, int], list[Figures]], cores: int, rounds: int) -> None:
    command = " ".join(["python -m bench.workers", *sys.argv[1:]])
    print(f"{cores} cores, {rounds} rounds, medians; `{command}`\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for (case, count), runs in seen.items():

        def median(name: str, runs: Sequence[Figures] = runs) -> float:
            return statistics.median(run.get(name, 0.0) for run in runs)

        alone = seen[case, 1]
        ratios = [run["per_s"] / one["per_s"] for run, one in zip(runs, alone, strict=True)]
        print(
            f"| {case} | {count} | {median('per_s'):.0f} | {statistics.median(ratios):.2f} | "
            f"{median('cpu_ms'):.3f} | {median('worker_ms'):.3f} | {median('scheduler_ms'):.3f} | "
            f"{median('busy_cores'):.2f} | {median('latency_p50_ms'):.2f} | "
            f"{median('latency_p99_ms'):.2f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
