"""What the sections of the scheduling bench share: workloads, paired grids, ratios."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

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
from gateway.sim.trace import TraceWorkflow

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
    traces: Path
    seeds: int
    pool: Executor
    lines: list[str] = field(default_factory=list)
    _capacities: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _alphas: dict[tuple[str, tuple[str, ...], float, float], float] = field(default_factory=dict)

    def say(self, line: str = "") -> None:
        """Print a line now and keep it for the report."""
        print(line, flush=True)
        self.lines.append(line)

    def single_calls(self) -> tuple[list[TraceWorkflow], str]:
        """Return independent calls without arrival times, and where they come from."""
        path = self.traces / "azure" / "AzureLLMInferenceTrace_conv.csv"
        if path.is_file():
            calls = [replace(call, arrival_s=None) for call in trace.load(path)]
            return calls, "Azure 2023 conversation trace"
        from loadgen.workloads.chat import chat

        return chat(Random(1), 4000), "built-in chat workload"

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


def load_workloads(directory: Path) -> tuple[list[Workload], str]:
    """Return the recorded traces, or the built-in workload where there are none."""
    folder = directory / "hexgen"
    if folder.is_dir():
        names = [(name, folder / f"input_file_{name}.json") for name in TRACES]
        return [Workload.split(name, trace.load(path)) for name, path in names], "recorded traces"
    from loadgen.workloads.text2sql import text2sql

    return (
        [Workload.split(f"built-in-{seed}", text2sql(Random(seed), 100)) for seed in range(3)],
        "built-in",
    )
