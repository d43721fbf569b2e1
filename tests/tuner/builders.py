"""Traffic and scorecards for the tuner's tests."""

from collections.abc import Callable, Sequence
from random import Random

from gateway.core.policies import PolicySettings
from gateway.core.types import Backend
from gateway.sim.experiment import Cell, Workload, fleet
from gateway.sim.scorecard import Scorecard
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow

HETERO = fleet(("A100", "A6000"))


def a_trace(count: int = 60, gap_s: float = 1.0, name: str = "w") -> list[TraceWorkflow]:
    """Workflows of two steps, at even distances; single calls if the name says so."""
    rng = Random(5)
    return [
        TraceWorkflow(
            name=name,
            steps=tuple(
                TraceStep(
                    calls=(
                        TraceCall(
                            stage=f"s{step}",
                            prompt_tokens=rng.randint(500, 4000),
                            output_tokens=rng.randint(10, 200),
                        ),
                    )
                )
                for step in range(1 if name == SINGLE else 2)
            ),
            arrival_s=number * gap_s,
            deadline_s=30.0,
        )
        for number in range(count)
    ]


def a_cell(
    policy: str = "hexgen",
    settings: PolicySettings | None = None,
    backends: tuple[Backend, ...] = HETERO,
) -> Cell:
    """Something to search around."""
    return Cell(
        workload=Workload.split("t", a_trace()),
        backends=backends,
        policy=policy,
        settings=settings or PolicySettings(),
        rate_per_s=1.0,
        seed=0,
        count=60,
    )


def a_card(latency_s: float, on_time: float = 1.0) -> Scorecard:
    """A run in which every workflow took the same."""
    return Scorecard(
        latencies_s=(latency_s,) * 10,
        completed_per_s=1.0,
        mean_ttlt_s=latency_s / 2,
        ttlt_s_p95=latency_s,
        mean_queue_s=0.0,
        preemptions_per_call=0.0,
        on_time=on_time,
        failed_workflows=0,
        calls=100,
    )


def measured_by(
    latency_s: Callable[[PolicySettings], float], noise: float = 0.0
) -> Callable[[Sequence[Cell]], list[Scorecard]]:
    """Stands in for simulation: a latency for each setting, times a lot for each setting and seed.

    What seeds do to every setting alike is in it, too: ten times the noise.
    """

    def measure(cells: Sequence[Cell]) -> list[Scorecard]:
        cards = []
        for cell in cells:
            alike = Random(cell.seed).lognormvariate(0, 10 * noise)
            own = Random(f"{cell.seed} {cell.settings}").lognormvariate(0, noise)
            cards.append(a_card(latency_s(cell.settings) * alike * own))
        return cards

    return measure
