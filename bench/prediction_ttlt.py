"""What the forecasts are worth: mean time to last token of single calls with real prompts.

    python bench/prediction_ttlt.py [--alpaca DIR] [--write FILE]

The product's own LengthPredictor learns half of the prompts with their answers' lengths; calls with
the other half, which it has never seen, arrive at a modelled fleet (2xA100 + A6000 + L40S) near
saturation. The scheduler and the engines' batching are those of the simulator; nothing was
measured on a GPU. `SRPT` orders by the forecast's mean, `sagesched` and `hexsage` use all of it;
`oracle` knows the true length.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from gateway import __version__
from gateway.core.lengths import LengthDistribution
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import PromptQuery
from gateway.sim.engine import EngineModel
from gateway.sim.experiment import Cell, Workload, arrivals, capacity_per_s, fleet
from gateway.sim.scorecard import Scorecard, score
from gateway.sim.simulator import Predict, simulate
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow

GPUS = ("A100", "A100", "A6000", "L40S")
CALLS = 4000
LOADS = (0.9, 1.1, 1.2)
ROWS = (
    ("least_backlog+fcfs (engine FCFS)", "least_backlog+fcfs", "predictor"),
    ("weighted_jsq+fcfs (engine FCFS)", "weighted_jsq+fcfs", "predictor"),
    ("srpt, one global guess", "srpt", "global"),
    ("srpt, point forecast", "srpt", "predictor"),
    ("completion+srpt, point forecast", "completion+srpt", "predictor"),
    ("sagesched", "sagesched", "predictor"),
    ("hexsage", "hexsage", "predictor"),
    ("hexsage, oracle", "hexsage", "oracle"),
    ("completion+srpt, oracle", "completion+srpt", "oracle"),
)


def _query(model: str, prompt: str) -> PromptQuery:
    return PromptQuery(model=model, prompt_tokens=_tokens(prompt), text=prompt)


def _tokens(prompt: str) -> int:
    return max(len(prompt.encode()) // 4, 1)


async def _forecasts(
    model: str, prompts: Sequence[str], lengths: Sequence[int], seen: Sequence[int]
) -> tuple[list[LengthDistribution], LengthDistribution]:
    """Return the forecast of every prompt after the seen ones were learned, and the global one."""
    predictor = LengthPredictor(PredictorSettings(deadline_s=60.0))
    predictor.start()
    try:
        for number, index in enumerate(seen):
            predictor.observe(
                await predictor.predict(_query(model, prompts[index])), lengths[index]
            )
            if number % 32 == 31:
                await predictor.drained()
        await predictor.drained()
        known = [(await predictor.predict(_query(model, prompt))).output for prompt in prompts]
    finally:
        predictor.close()
    return known, LengthDistribution.from_samples([lengths[index] for index in seen])


def _measure(cell: Cell, predict: Predict) -> Scorecard:
    policy = policy_from_name(cell.policy)
    engines = {
        backend.id: EngineModel(backend.profile, priority_scheduling=policy.ranks_in_engine)
        for backend in cell.backends
    }
    return score(simulate(arrivals(cell), Scheduler(cell.backends, policy), engines, predict))


def _workflow(index: int, prompt: str, tokens: int) -> TraceWorkflow:
    call = TraceCall(stage=str(index), prompt_tokens=_tokens(prompt), output_tokens=tokens)
    return TraceWorkflow(name=SINGLE, steps=(TraceStep(calls=(call,)),))


def report(model: str, prompts: Sequence[str], lengths: Sequence[int], seed: int) -> list[str]:
    """Return the table for one model's answers."""
    order = list(range(len(prompts)))
    Random(seed).shuffle(order)
    seen, unseen = order[: len(order) * 7 // 10], order[len(order) * 7 // 10 :]
    known, everywhere = asyncio.run(_forecasts(model, prompts, lengths, seen))
    calls = [_workflow(i, prompts[i], max(lengths[i], 1)) for i in range(len(prompts))]
    workload = Workload(
        name=model,
        seen=tuple(calls[i] for i in seen),
        held_out=tuple(calls[i] for i in unseen),
    )
    backends = fleet(GPUS)
    capacity = capacity_per_s(workload, backends, 3000, max_in_flight=None)
    forecasts: dict[str, Predict] = {
        "predictor": lambda call: known[int(call.stage)],
        "global": lambda _: everywhere,
        "oracle": lambda call: LengthDistribution.point(call.output_tokens),
    }
    lines = [
        f"### {model}: mean TTLT s (P95 s)",
        "",
        "| | " + " | ".join(f"load {load}" for load in LOADS) + " |",
        "|---|" + "---|" * len(LOADS),
    ]
    for label, policy, forecast in ROWS:
        cells = []
        for load in LOADS:
            cell = Cell(
                workload=workload,
                backends=backends,
                policy=policy,
                rate_per_s=load * capacity,
                seed=seed,
                count=CALLS,
            )
            card = _measure(cell, forecasts[forecast])
            cells.append(f"{card.mean_ttlt_s:.1f} ({card.ttlt_s_p95:.0f})")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--alpaca", type=Path, default=Path("../shared/traces/alpaca_eval"))
    parser.add_argument("--models", type=int, default=2, help="how many models' answers")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    path = arguments.alpaca / "lengths.json"
    if not path.is_file():
        print(f"{path} is not there: this bench needs real prompts with their answers' lengths")
        return 2
    data = json.loads(path.read_text())
    lines = [
        "## End to end: what the forecasts are worth",
        "",
        f"`python bench/prediction_ttlt.py`, HexSage {__version__}, seed {arguments.seed}: "
        f"{CALLS} single calls with prompts that the predictor has never seen (it learned the "
        "other 70 % of 805), on a *modelled* fleet of two A100, an A6000 and an L40S; load 1.0 is "
        "the fleet's throughput with a deep backlog under the KV budget.",
        "",
    ]
    for model in list(data["output_tokens"])[: arguments.models]:
        lines += report(model, data["prompts"], data["output_tokens"][model], arguments.seed)
    if arguments.write:
        arguments.write.write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
