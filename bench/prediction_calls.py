"""How many calls does a forecast take, and how often is its thread woken? The same on any machine.

    python -m bench.prediction_calls

Calls of Python functions and of C functions by name are counted; what an operator does is not.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType

import numpy as np
import uvloop

from bench.prediction_cost import filled, text_of
from gateway.predictor.predictor import LengthPredictor
from gateway.predictor.query import Ended, PromptQuery

WARM, COUNTED = 20, 40
SECONDS = 3.0


def calls_of(job: Callable[[], object]) -> Counter[str]:
    """Run a job and count its calls: of Python, and of C."""
    seen: Counter[str] = Counter()

    def look(_frame: FrameType, event: str, _: object) -> None:
        seen[event] += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        job()
    finally:
        sys.setprofile(None)
    seen["c_call"] -= 1  # the end of the profile
    return seen


def count(predictor: LengthPredictor, tokens: int) -> dict[str, Counter[str]]:
    """Return what each part of an unseen prompt's way takes, in calls over `COUNTED` prompts."""
    assert predictor._owner is not None
    learner, levels = predictor._owner._learner, predictor._levels
    rng = np.random.default_rng(tokens)
    stage = f"s{tokens}"
    found: dict[str, Counter[str]] = {}
    for number in range(WARM + COUNTED):
        for monitor in learner._monitors.values():
            monitor.is_bypassed = False  # the lengths are made up
        text, length = text_of(tokens, rng), float(rng.lognormal(5.0, 1.0)) + 1
        query = PromptQuery(model="m", prompt_tokens=tokens, text=text, stages=(stage,))
        quick = predictor.predict_quick(query)
        ticket = quick.ticket
        jobs: dict[str, Callable[[], object]] = {
            "answer at once": partial(predictor.predict_quick, query),
            "answer in full": partial(learner.answer, [ticket]),
            "work out its quantiles": partial(getattr, quick, "output"),
            "learn": partial(learner.learn, ticket, length, Ended.FINISHED),
            "count in its stage": partial(levels.add, "m", stage, tokens, length, False, 1.0),
        }
        for name, job in jobs.items():
            if number < WARM:
                job()
            else:
                found.setdefault(name, Counter()).update(calls_of(job))
    return found


async def wakes(predictor: LengthPredictor, per_s: int) -> tuple[float, float]:
    """Tell of so many outcomes a second; return how often its thread went to sleep, by second.

    And the thread's CPU for each, in microseconds.
    """
    assert predictor._owner is not None
    folder = Path(f"/proc/self/task/{predictor._owner._thread.native_id}")

    def slept() -> int:
        (line,) = [
            line
            for line in (folder / "status").read_text().splitlines()
            if line.startswith("voluntary")
        ]
        return int(line.split()[1])

    def worked_us() -> float:
        return int((folder / "schedstat").read_text().split()[0]) / 1e3

    rng = np.random.default_rng(1)
    told, before, cpu_us, began = 0, slept(), worked_us(), perf_counter()
    while (passed := perf_counter() - began) < SECONDS:
        while told < passed * per_s:
            quick = predictor.predict_quick(PromptQuery(model="m", prompt_tokens=32))
            predictor.observe(quick, int(rng.lognormal(5.0, 1.0)) + 1)
            told += 1
        await asyncio.sleep(max(0.0003, began + told / per_s - perf_counter()))
    await predictor.drained()
    return (slept() - before) / SECONDS, (worked_us() - cpu_us) / told


async def main() -> None:
    """Print two tables."""
    predictor = await filled(9000)
    print("| calls of Python + C | 32 tokens | 10,000 tokens |\n|---|---:|---:|")
    short, long = (count(predictor, tokens) for tokens in (32, 10_000))
    for name in short:
        cells = [
            f"{c['call'] / COUNTED:.0f} + {c['c_call'] / COUNTED:.0f}"
            for c in (short[name], long[name])
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} |")
    print("\n| outcomes/s | sleeps/s | thread's CPU, us each |\n|---:|---:|---:|")
    for per_s in (20, 200, 2000):
        slept, cpu_us = await wakes(predictor, per_s)
        print(f"| {per_s} | {slept:.0f} | {cpu_us:.0f} |")
    predictor.close()


if __name__ == "__main__":
    uvloop.run(main())
