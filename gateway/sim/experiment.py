"""Experiments: one cell (workload, fleet, policy, load, seed) played and scored. All pickles."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, log, sqrt
from random import Random
from statistics import fmean, pstdev

from gateway.core.cost import average
from gateway.core.lengths import LengthDistribution, log_normal
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.profiles import GpuProfile, built_in
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId
from gateway.core.workflow import Workflows
from gateway.sim.engine import EngineModel
from gateway.sim.history import StageHistory, critical_path_s, oracle, teach
from gateway.sim.scorecard import Scorecard, score
from gateway.sim.simulator import MODEL, Arrival, Fault, Predict, Run, simulate
from gateway.sim.trace import SINGLE_STAGE, TraceCall, TraceWorkflow

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


class Forecast(StrEnum):
    """What the gateway knows of an answer's length beforehand."""

    STAGE = "stage"
    """What earlier calls of the stage were like."""
    TRUTH = "truth"
    SIGNAL = "signal"
    """A calibrated forecast whose median correlates with the truth (in logs) by SIGNAL_RHO."""


SIGNAL_RHO = 0.55
"""What the predictor reaches on prompts it has never seen (`docs/benchmarks/prediction.md`)."""


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
    """Of every workflow; None: each has the one in the trace, if any."""
    engines: tuple[GpuProfile, ...] = ()
    """What the backends really are, in their order; empty: as believed."""
    faults: tuple[Fault, ...] = ()
    learns_profiles: bool = True
    streams: bool = True
    """The gateway hears of first tokens."""
    forecast_factor: float = 1.0
    """Each stage's forecast is off by this factor, up or down by stage."""
    forecast: Forecast = Forecast.STAGE
    singles: tuple[TraceWorkflow, ...] = ()
    """Independent calls that arrive beside the workflows."""
    singles_per_s: float = 0.0


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
            Arrival(
                id=f"w{number}",
                at=at,
                workflow=workflow,
                deadline_s=workflow.deadline_s if cell.deadline_s is None else cell.deadline_s,
            )
        )
    if not cell.singles_per_s:
        return result
    single_at = rng.expovariate(cell.singles_per_s)
    while single_at < at:
        call = rng.choice(cell.singles)
        result.append(Arrival(id=f"s{len(result)}", at=single_at, workflow=call))
        single_at += rng.expovariate(cell.singles_per_s)
    return sorted(result, key=lambda arrival: (arrival.at, arrival.id))


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
    return simulate(
        arrivals(cell),
        Scheduler(cell.backends, policy, workflows=workflows, learns_profiles=cell.learns_profiles),
        engines,
        _forecaster(cell),
        faults=cell.faults,
        streams=cell.streams,
        keep_log=keep_log,
    )


def _forecaster(cell: Cell) -> Predict:
    if cell.forecast is Forecast.TRUTH:
        return oracle
    history = StageHistory(cell.workload.seen)
    if cell.forecast is Forecast.SIGNAL:
        known = cell.singles or cell.workload.seen
        logs = [log(call.output_tokens) for workflow in known for call in workflow.calls]
        centre, spread = fmean(logs), pstdev(logs)

        def signal(call: TraceCall) -> LengthDistribution:
            if cell.singles and call.stage != SINGLE_STAGE:
                return history.predict(call)
            rng = Random(f"{call.prompt_tokens} {call.output_tokens}")
            noise = spread * sqrt(1 / SIGNAL_RHO**2 - 1) * rng.gauss(0, 1)
            seen = log(call.output_tokens) + noise
            median = exp(centre + SIGNAL_RHO**2 * (seen - centre))
            return log_normal(median, spread * sqrt(1 - SIGNAL_RHO**2))

        return signal

    def by_stage(call: TraceCall) -> LengthDistribution:
        return _distorted(history.predict(call), call.stage, cell.forecast_factor)

    return by_stage


def measure_mixed(cell: Cell) -> tuple[Scorecard, Scorecard]:
    """Run a cell of mixed traffic; return the scorecards of its workflows and single calls."""
    run = play(cell)
    return score(run, singles=False), score(run, singles=True)


def measure(cell: Cell) -> Scorecard:
    """Run the cell and return its scorecard; single calls beside workflows are not in it."""
    return score(play(cell), singles=False if cell.singles_per_s else None)


def measure_all(cells: Sequence[Cell], pool: Executor | None = None) -> list[Scorecard]:
    """Run cells, side by side if there is a pool; results in the order of the cells."""
    if pool is None:
        return [measure(cell) for cell in cells]
    return list(pool.map(measure, cells))


def capacity_per_s(
    workload: Workload,
    backends: Sequence[Backend],
    count: int = 300,
    max_in_flight: int | None = 12,
) -> float:
    """Return the fleet's reference capacity in workflows a second: load 1.0.

    The deep-backlog throughput of late binding with at most `max_in_flight` calls a backend (12
    is what long prompts bear; None lets the KV budget alone decide, for short ones): everything
    arrives at once, the oldest workflow goes first, and completions are counted between the
    first and the last 15 %.
    """
    capped = tuple(replace(backend, max_in_flight=max_in_flight) for backend in backends)
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
