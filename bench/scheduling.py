"""The scheduling table: every policy on paired arrivals, in simulation. Not a GPU measurement.

    python bench/scheduling.py                      # everything; about 20 minutes on two cores
    python bench/scheduling.py --only grid --seeds 3 --write docs/benchmarks/scheduling.md

Recorded traces are read from `../shared/traces` (or --traces DIR) where they are; without them the
built-in text-to-SQL workload stands in, and the report says so.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway import __version__
from gateway.core.policies import PolicySettings
from gateway.core.types import Backend
from gateway.sim import trace
from gateway.sim.experiment import (
    DEADLINE_SCALE,
    Cell,
    Workload,
    capacity_per_s,
    fleet,
    measure_all,
)
from gateway.sim.scorecard import Scorecard, bootstrap_ratio
from gateway.sim.simulator import Fault, FaultKind

TRACES = ("trace1", "trace2", "trace3", "financial", "formula1")
FLEETS = {
    "hetero-1": ("A100", "A100", "A6000", "L40S"),
    "hetero-2": ("A100", "A100", "A6000", "A6000"),
    "4xA100": ("A100", "A100", "A100", "A100"),
    "wide": ("H100", "A100", "A100", "A6000", "A40", "L40S"),
}
POLICIES = (
    "round_robin+fcfs",
    "least_backlog+fcfs",
    "weighted_jsq+fcfs",
    "p2c+fcfs",
    "hexgen",
    "sagesched",
    "edf",
    "llf",
    "srpt",
    "hexsage",
)
JSQ = "least_backlog+fcfs"
RR = "round_robin+fcfs"
WJSQ = "weighted_jsq+fcfs"
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
FIRST_SEED = 100
TUNING_SEED = 7
"""Not among the seeds that are measured."""


@dataclass
class Bench:
    """What every section needs: workloads, seeds, a pool, and somewhere to write."""

    workloads: list[Workload]
    seeds: int
    pool: Executor
    lines: list[str] = field(default_factory=list)
    _capacities: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _alphas: dict[tuple[str, tuple[str, ...], float, float], float] = field(default_factory=dict)

    def say(self, line: str = "") -> None:
        """Print a line now and keep it for the report."""
        print(line, flush=True)
        self.lines.append(line)

    def capacity(self, workload: Workload, backends: Sequence[Backend]) -> float:
        """Return the reference capacity, measured once."""
        key = (workload.name, tuple(backend.id for backend in backends))
        if key not in self._capacities:
            self._capacities[key] = capacity_per_s(workload, backends)
        return self._capacities[key]

    def cell(
        self, workload: Workload, backends: tuple[Backend, ...], load: float, seed: int
    ) -> Cell:
        """Return a cell at a load, under the default policy."""
        return Cell(
            workload=workload,
            backends=backends,
            policy="hexsage",
            rate_per_s=load * self.capacity(workload, backends),
            seed=FIRST_SEED + seed,
            deadline_s=DEADLINE_SCALE * workload.unloaded_s(backends),
        )

    def grid(
        self,
        gpus: Sequence[str],
        load: float,
        policies: Sequence[str],
        change: Callable[[Cell], Cell] = lambda cell: cell,
    ) -> dict[str, list[Scorecard]]:
        """Return one scorecard a (workload, seed) pair for each policy, pairs in one order."""
        backends = fleet(gpus)
        bases = [
            change(self.cell(workload, backends, load, seed))
            for workload in self.workloads
            for seed in range(self.seeds)
        ]
        cells = [self._with_policy(base, policy) for policy in policies for base in bases]
        scores = measure_all(cells, self.pool)
        size = len(bases)
        return {p: scores[i * size : (i + 1) * size] for i, p in enumerate(policies)}

    def _with_policy(self, base: Cell, policy: str) -> Cell:
        if policy != "hexgen":
            return replace(base, policy=policy)
        alpha = self._tuned_alpha(base)
        return replace(base, policy=policy, settings=PolicySettings(alpha=alpha))

    def _tuned_alpha(self, base: Cell) -> float:
        """Return the alpha that is best for this workload, fleet and load, on another seed."""
        key = (
            base.workload.name,
            tuple(backend.id for backend in base.backends),
            base.rate_per_s,
            base.cv,
        )
        if key not in self._alphas:
            tries = [
                replace(
                    base,
                    policy="hexgen",
                    seed=TUNING_SEED,
                    settings=PolicySettings(alpha=alpha),
                    faults=(),
                )
                for alpha in ALPHAS
            ]
            scores = measure_all(tries, self.pool)
            best = min(range(len(ALPHAS)), key=lambda i: scores[i].percentile_s(0.95))
            self._alphas[key] = ALPHAS[best]
        return self._alphas[key]


def p95(scores: Sequence[Scorecard]) -> list[float]:
    """Return the P95 workflow latency of each run, in seconds."""
    return [score.percentile_s(0.95) for score in scores]


def ratio(over: Sequence[float], under: Sequence[float]) -> str:
    """Return a paired ratio with its interval, as text."""
    mean, low, high = bootstrap_ratio(over, under)
    return f"{mean:.2f} [{low:.2f},{high:.2f}]"


def section_grid(bench: Bench) -> None:
    """P95 against JSQ, on hetero-1 over the loads."""
    loads = (0.4, 0.6, 0.8, 0.95, 1.1)
    results = {load: bench.grid(FLEETS["hetero-1"], load, POLICIES) for load in loads}
    bench.say("## P95 workflow latency, ratio `least_backlog+fcfs` (JSQ) / policy, hetero-1")
    bench.say()
    bench.say("Above 1 is better than JSQ; 95 % bootstrap intervals over (trace, seed) pairs.")
    bench.say()
    header = " | ".join(f"load {load}" for load in loads)
    bench.say(f"| policy | {header} |")
    bench.say("|---|" + "---|" * len(loads))
    for policy in POLICIES:
        cells = [ratio(p95(results[x][JSQ]), p95(results[x][policy])) for x in loads]
        bench.say(f"| {policy} | " + " | ".join(cells) + " |")
    bench.say()
    bench.say("## The default against each rival: rival's P95 / `hexsage`'s P95, hetero-1")
    bench.say()
    bench.say(f"| rival | {header} |")
    bench.say("|---|" + "---|" * len(loads))
    for rival in POLICIES[:-1]:
        cells = [ratio(p95(results[x][rival]), p95(results[x]["hexsage"])) for x in loads]
        bench.say(f"| {rival} | " + " | ".join(cells) + " |")
    bench.say()
    _other_figures(bench, loads, results)


def _other_figures(
    bench: Bench, loads: Sequence[float], results: dict[float, dict[str, list[Scorecard]]]
) -> None:
    bench.say("## Other figures on hetero-1 (means over pairs)")
    bench.say()
    bench.say(
        "| policy | load | mean s | P95 s | P99 s | within 3xT0 | completed/s vs RR "
        "| mean TTLT s | preemptions a call |"
    )
    bench.say("|---|---|---|---|---|---|---|---|---|")
    for policy in POLICIES:
        for load in loads:
            scores = results[load][policy]
            base = results[load][RR]
            count = len(scores)
            attained = _attained(bench, scores)
            speedup = sum(
                s.completed_per_s / r.completed_per_s for s, r in zip(scores, base, strict=True)
            )
            bench.say(
                f"| {policy} | {load} | {sum(s.mean_s for s in scores) / count:.1f} "
                f"| {sum(p95(scores)) / count:.1f} "
                f"| {sum(s.percentile_s(0.99) for s in scores) / count:.1f} "
                f"| {attained:.3f} | {speedup / count:.2f} "
                f"| {sum(s.mean_ttlt_s for s in scores) / count:.2f} "
                f"| {sum(s.preemptions_per_call for s in scores) / count:.4f} |"
            )
    bench.say()


def _attained(bench: Bench, scores: Sequence[Scorecard]) -> float:
    backends = fleet(FLEETS["hetero-1"])
    deadlines = [
        DEADLINE_SCALE * workload.unloaded_s(backends)
        for workload in bench.workloads
        for _ in range(bench.seeds)
    ]
    pairs = zip(scores, deadlines, strict=True)
    return sum(score.attainment(deadline_s) for score, deadline_s in pairs) / len(scores)


def section_goodput(bench: Bench) -> None:
    """The highest load with 95 % of workflows within 3 x T0."""
    loads = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    policies = (RR, JSQ, WJSQ, "hexgen", "hexsage")
    results = {load: bench.grid(FLEETS["hetero-1"], load, policies) for load in loads}
    backends = fleet(FLEETS["hetero-1"])
    bench.say("## Goodput: highest load with at least 95 % within 3xT0, hetero-1")
    bench.say()
    bench.say("Interpolated between the loads of the grid, mean over (trace, seed) pairs.")
    bench.say()
    bench.say("| policy | load | vs RR | vs JSQ |")
    bench.say("|---|---|---|---|")
    reached: dict[str, list[float]] = {}
    for policy in policies:
        reached[policy] = []
        for pair in range(len(bench.workloads) * bench.seeds):
            workload = bench.workloads[pair // bench.seeds]
            deadline_s = DEADLINE_SCALE * workload.unloaded_s(backends)
            curve = [results[load][policy][pair].attainment(deadline_s) for load in loads]
            reached[policy].append(_crossing(loads, curve, 0.95))
    for policy in policies:
        mean = sum(reached[policy]) / len(reached[policy])
        bench.say(
            f"| {policy} | {mean:.2f} | {ratio(reached[policy], reached[RR])} "
            f"| {ratio(reached[policy], reached[JSQ])} |"
        )
    bench.say()


def _crossing(loads: Sequence[float], curve: Sequence[float], level: float) -> float:
    """Return the load at which a falling curve first crosses the level."""
    if curve[0] < level:
        return loads[0] * curve[0] / level
    for (low, high), (at_low, at_high) in zip(
        zip(loads, loads[1:], strict=False), zip(curve, curve[1:], strict=False), strict=True
    ):
        if at_high < level:
            return low + (high - low) * (at_low - level) / (at_low - at_high)
    return loads[-1]


def section_fleets(bench: Bench) -> None:
    """Other fleets and burstier arrivals, P95 against JSQ."""
    policies = (RR, JSQ, WJSQ, "hexgen", "edf", "hexsage")
    rows: list[tuple[str, Sequence[str], float, float]] = []
    for name in ("hetero-2", "4xA100", "wide"):
        rows += [(name, FLEETS[name], 1.0, load) for load in (0.5, 0.75, 0.95)]
    rows += [("hetero-1", FLEETS["hetero-1"], cv, load) for cv in (2, 4) for load in (0.5, 0.75)]
    bench.say("## Other fleets, bursts: P95 ratio JSQ / policy")
    bench.say()
    bench.say("| fleet | gaps' cv | load | " + " | ".join(policies) + " |")
    bench.say("|---|---|---|" + "---|" * len(policies))
    for name, gpus, cv, load in rows:
        result = bench.grid(gpus, load, policies, lambda cell, cv=cv: replace(cell, cv=cv))  # type: ignore[misc]
        cells = [ratio(p95(result[JSQ]), p95(result[policy])) for policy in policies]
        bench.say(f"| {name} | {cv} | {load} | " + " | ".join(cells) + " |")
    bench.say()


def section_faults(bench: Bench) -> None:
    """Wrong beliefs and broken engines at load .75, P95 against JSQ under the same fault."""
    policies = (JSQ, WJSQ, "hexgen", "hexsage")

    def slower(cell: Cell) -> Cell:
        truth = [b.profile for b in cell.backends]
        truth[0] = _scaled(cell, 0, 2.0)
        return replace(cell, engines=tuple(truth))

    def faster(cell: Cell) -> Cell:
        truth = [b.profile for b in cell.backends]
        truth[2] = _scaled(cell, 2, 2.0)
        return replace(cell, engines=tuple(truth))

    def window(cell: Cell) -> tuple[float, float]:
        start = cell.count / cell.rate_per_s * 0.4
        return start, start + 600

    def crash(cell: Cell) -> Cell:
        start, stop = window(cell)
        backend_id = cell.backends[0].id
        return replace(
            cell,
            faults=(
                Fault(at=start, backend_id=backend_id, kind=FaultKind.FAIL),
                Fault(at=stop, backend_id=backend_id, kind=FaultKind.RECOVER),
            ),
        )

    def stall(cell: Cell) -> Cell:
        start, stop = window(cell)
        backend_id = cell.backends[0].id
        return replace(
            cell,
            faults=(
                Fault(at=start, backend_id=backend_id, kind=FaultKind.SLOW, factor=3.0),
                Fault(at=stop, backend_id=backend_id, kind=FaultKind.SLOW, factor=1.0),
            ),
        )

    rows: list[tuple[str, Callable[[Cell], Cell]]] = [
        ("none", lambda cell: cell),
        ("each stage's forecast off x2 or /2", lambda c: replace(c, forecast_factor=2.0)),
        ("one A100 twice as slow as believed", slower),
        ("the A6000 twice as slow as believed", faster),
        ("one A100 three times as slow for 600 s", stall),
        ("one A100 down for 600 s, its work retried", crash),
    ]
    bench.say("## Faults and wrong beliefs at load .75, hetero-1: P95 ratio JSQ / policy")
    bench.say()
    bench.say("| fault | " + " | ".join(policies) + " |")
    bench.say("|---|" + "---|" * len(policies))
    for name, change in rows:
        result = bench.grid(FLEETS["hetero-1"], 0.75, policies, change)
        cells = [ratio(p95(result[JSQ]), p95(result[policy])) for policy in policies]
        bench.say(f"| {name} | " + " | ".join(cells) + " |")
    bench.say()


def _scaled(cell: Cell, index: int, slowness: float):  # type: ignore[no-untyped-def]
    profile = cell.backends[index].profile
    return replace(
        profile,
        prefill_s_per_token=profile.prefill_s_per_token * slowness,
        decode_base_s=profile.decode_base_s * slowness,
        kv_read_s_per_token=profile.kv_read_s_per_token * slowness,
    )


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "grid": section_grid,
    "goodput": section_goodput,
    "fleets": section_fleets,
    "faults": section_faults,
}


def load_workloads(directory: Path) -> tuple[list[Workload], str]:
    """Return the recorded traces, or the built-in workload where there are none."""
    folder = directory / "hexgen"
    if folder.is_dir():
        names = [(name, folder / f"input_file_{name}.json") for name in TRACES]
        return [Workload.split(name, trace.load(path)) for name, path in names], "recorded traces"
    from loadgen.workloads.text2sql import workflows

    return (
        [Workload.split(f"built-in-{seed}", workflows(seed, 100)) for seed in range(3)],
        "built-in",
    )


def main() -> int:
    """Run the chosen sections; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="sections to run")
    parser.add_argument("--seeds", type=int, default=2, help="seeds a trace (default 2)")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--write", type=Path, help="write the report to this Markdown file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    workloads, source = load_workloads(arguments.traces)
    with ProcessPoolExecutor(arguments.workers) as pool:
        bench = Bench(workloads=workloads, seeds=arguments.seeds, pool=pool)
        bench.say("# Scheduling, simulated")
        bench.say()
        bench.say(
            f"Simulated, not measured on GPUs. HexSage {__version__}, Python "
            f"{platform.python_version()}; workload: {source}, {len(workloads)} x "
            f"{arguments.seeds} seeds from {FIRST_SEED}, 300 workflows a run. Command: "
            f"`python bench/scheduling.py {' '.join(sys.argv[1:])}`".replace(" `", " `").rstrip()
        )
        bench.say()
        for name in arguments.only or SECTIONS:
            SECTIONS[name](bench)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text("\n".join(bench.lines).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
