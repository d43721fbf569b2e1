"""Experiments: one cell (workload, fleet, policy, load, seed) played and scored. All pickles."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from random import Random

from gateway.core.cost import average
from gateway.core.lengths import LengthDistribution
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.profiles import GpuProfile, built_in
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId
from gateway.core.workflow import Workflows
from gateway.sim.engine import EngineModel
from gateway.sim.history import StageHistory, critical_path_s, oracle, teach
from gateway.sim.scorecard import Scorecard, score
from gateway.sim.simulator import MODEL, Arrival, Fault, Run, simulate
from gateway.sim.trace import TraceCall, TraceWorkflow

DEADLINE_SCALE = 3.0
"""Deadlines are this many times T0, the mean unloaded critical path on the average backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workflows cut in two: what the gateway has seen before, and what is now played."""

    name: str
    seen: tuple[TraceWorkflow, ...]
    held_out: tuple[TraceWorkflow, ...]

    @classmethod
    def split(cls, name: str, workflows: Sequence[TraceWorkflow], seed: int = 0) -> "Workload":
        """Return the workflows cut into two random halves."""
        shuffled = list(workflows)
        Random(seed).shuffle(shuffled)
        half = len(shuffled) // 2
        return cls(name=name, seen=tuple(shuffled[:half]), held_out=tuple(shuffled[half:]))

    def unloaded_s(self, backends: Sequence[Backend]) -> float:
        """Return T0: the mean critical path of all workflows on the average backend."""
        reference = average([backend.profile for backend in backends])
        paths = [critical_path_s(w, reference) for w in (*self.seen, *self.held_out)]
        return sum(paths) / len(paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run to make."""

    workload: Workload
    backends: tuple[Backend, ...]
    """As the gateway believes them to be."""
    policy: str
    rate_per_s: float
    """Workflows that arrive each second."""
    seed: int
    settings: PolicySettings = field(default_factory=PolicySettings)
    count: int = 300
    cv: float = 1.0
    """Coefficient of variation of the gaps: 1 is Poisson, more is burstier (gamma)."""
    deadline_s: float | None = None
    engines: tuple[GpuProfile, ...] = ()
    """What the backends really are, in their order; empty: as believed."""
    faults: tuple[Fault, ...] = ()
    forecast_factor: float = 1.0
    """Each stage's forecast is off by this factor, up or down by stage."""
    knows_truth: bool = False


def fleet(gpus: Iterable[str], *, priority_scheduling: bool = True) -> tuple[Backend, ...]:
    """Return one backend a named GPU, with names like `a100-0`."""
    backends = []
    counts: dict[str, int] = {}
    for gpu in gpus:
        number = counts.get(gpu, 0)
        counts[gpu] = number + 1
        backends.append(
            Backend(
                id=BackendId(f"{gpu.lower()}-{number}"),
                models=frozenset({MODEL}),
                profile=built_in(gpu),
                priority_scheduling=priority_scheduling,
            )
        )
    return tuple(backends)


def arrivals(cell: Cell) -> list[Arrival]:
    """Return the cell's arrivals: the same for every policy, given the seed."""
    rng = Random(cell.seed)
    shape = 1 / cell.cv**2
    at = 0.0
    result = []
    for number in range(cell.count):
        at += rng.gammavariate(shape, 1 / (shape * cell.rate_per_s))
        workflow = rng.choice(cell.workload.held_out)
        result.append(
            Arrival(id=f"w{number}", at=at, workflow=workflow, deadline_s=cell.deadline_s)
        )
    return result


def play(cell: Cell, *, keep_log: bool = False) -> Run:
    """Run the cell."""
    policy = policy_from_name(cell.policy, cell.settings)
    workflows = Workflows()
    teach(workflows, cell.workload.seen, average([b.profile for b in cell.backends]))
    truths = cell.engines or tuple(backend.profile for backend in cell.backends)
    engines = {
        backend.id: EngineModel(
            profile,
            priority_scheduling=backend.priority_scheduling and policy.ranks_in_engine,
        )
        for backend, profile in zip(cell.backends, truths, strict=True)
    }
    history = StageHistory(cell.workload.seen)

    def predict(call: TraceCall) -> LengthDistribution:
        if cell.knows_truth:
            return oracle(call)
        forecast = history.predict(call)
        return _distorted(forecast, call.stage, cell.forecast_factor)

    return simulate(
        arrivals(cell),
        Scheduler(cell.backends, policy, workflows=workflows),
        engines,
        predict,
        faults=cell.faults,
        keep_log=keep_log,
    )


def measure(cell: Cell) -> Scorecard:
    """Run the cell and return its scorecard."""
    return score(play(cell))


def measure_all(cells: Sequence[Cell], pool: Executor | None = None) -> list[Scorecard]:
    """Run cells, side by side if there is a pool; results in the order of the cells."""
    if pool is None:
        return [measure(cell) for cell in cells]
    return list(pool.map(measure, cells))


def capacity_per_s(workload: Workload, backends: Sequence[Backend], count: int = 300) -> float:
    """Return the fleet's reference capacity in workflows a second: load 1.0.

    The deep-backlog throughput of late binding with 12 calls in flight a backend: everything
    arrives at once, the oldest workflow goes first, and completions are counted between the
    first and the last 15 %.
    """
    capped = tuple(replace(backend, max_in_flight=12) for backend in backends)
    cell = Cell(
        workload=workload,
        backends=capped,
        policy="edf",
        rate_per_s=1e6,
        seed=1,
        count=count,
        deadline_s=1e6,
    )
    ends = sorted(w.ended_at for w in play(cell).workflows if w.ended_at is not None)
    first, last = int(len(ends) * 0.15), int(len(ends) * 0.85)
    return (last - first) / (ends[last] - ends[first])


def _distorted(forecast: LengthDistribution, stage: str, factor: float) -> LengthDistribution:
    """Return the forecast stretched by the factor, or shrunk by it, as the stage's name has it."""
    if factor == 1.0:
        return forecast
    stretch = factor if len(stage) % 2 else 1 / factor
    return LengthDistribution(
        mass=forecast.mass, edges=tuple(edge * stretch for edge in forecast.edges)
    )
