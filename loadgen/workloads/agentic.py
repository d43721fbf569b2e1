"""The built-in agentic workload: sessions of several turns whose prompt grows.

Each turn sends the whole conversation again: the prompt before, the answer to it, and what the
agent's tool returned. Nothing published is followed here; the figures are assumptions of the
size that coding and research agents show, and they are all in this file.
"""

from random import Random

from gateway.sim.trace import TraceCall, TraceStep, TraceWorkflow
from loadgen.lengths import Quantiles

TURNS = ([2, 3, 4, 5, 6, 8, 10, 14], [10, 15, 20, 18, 14, 11, 8, 4])
FIRST_PROMPT = Quantiles({0.05: 1500, 0.5: 2500, 0.95: 5000})
OUTPUT = Quantiles({0.05: 30, 0.5: 140, 0.95: 700, 0.99: 1500})
OBSERVATION = Quantiles({0.05: 40, 0.5: 350, 0.95: 2000})
TOOL_MS = Quantiles({0.05: 100, 0.5: 800, 0.95: 5000})


def agentic(rng: Random, count: int) -> list[TraceWorkflow]:
    """Draw `count` sessions."""
    return [_session(rng, f"agent-session-{number}") for number in range(count)]


def _session(rng: Random, name: str) -> TraceWorkflow:
    turns, weights = TURNS
    steps = []
    prompt_tokens = FIRST_PROMPT.at(rng.gauss(0.0, 1.0))
    for turn in range(rng.choices(turns, weights)[0]):
        output_tokens = OUTPUT.at(rng.gauss(0.0, 1.0))
        call = TraceCall(
            stage="turn",
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            # The conversation is a template of its own that grows: the next turn repeats it.
            template=name,
            template_tokens=prompt_tokens,
        )
        tool_s = TOOL_MS.at(rng.gauss(0.0, 1.0)) / 1000 if turn else 0.0
        steps.append(TraceStep(calls=(call,), tool_s=tool_s))
        prompt_tokens += output_tokens + OBSERVATION.at(rng.gauss(0.0, 1.0))
    return TraceWorkflow(name="agentic", steps=tuple(steps))
