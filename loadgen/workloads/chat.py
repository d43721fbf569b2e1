"""The built-in chat workload: single calls.

Length quantiles are those of the conversation service in the Azure LLM inference trace 2023
(Azure/AzurePublicDataset, CC-BY; Splitwise, ISCA 2024), where prompt and answer lengths are
hardly correlated (rank correlation 0.07).
"""

from random import Random

from gateway.sim.trace import TraceCall, TraceStep, TraceWorkflow
from loadgen.lengths import Quantiles, near

PROMPT = Quantiles({0.01: 29, 0.05: 181, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.95: 4083, 0.99: 4142})
OUTPUT = Quantiles({0.01: 16, 0.05: 41, 0.25: 85, 0.5: 129, 0.75: 395, 0.95: 451, 0.99: 601})
SYSTEM_TOKENS = 24
"""The system message that all chats share; the trace says nothing of one."""


def chat(rng: Random, count: int) -> list[TraceWorkflow]:
    """Draw `count` workflows of one call."""
    return [
        TraceWorkflow(name="chat", steps=(TraceStep(calls=(_call(rng),)),)) for _ in range(count)
    ]


def _call(rng: Random) -> TraceCall:
    z = rng.gauss(0.0, 1.0)
    return TraceCall(
        stage="chat",
        prompt_tokens=PROMPT.at(z),
        output_tokens=OUTPUT.at(near(z, 0.07, rng)),
        template="chat-system",
        template_tokens=SYSTEM_TOKENS,
    )
