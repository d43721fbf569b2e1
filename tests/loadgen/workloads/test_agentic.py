"""Tests of loadgen.workloads.agentic."""

from itertools import pairwise
from random import Random

from loadgen.workloads.agentic import agentic


def test_each_turn_repeats_the_conversation_and_its_answer_and_adds_to_it() -> None:
    for session in agentic(Random(1), 200):
        for earlier, later in pairwise(session.calls):
            assert later.template == earlier.template
            assert later.template_tokens == later.prompt_tokens
            assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens


def test_tools_run_between_turns_only() -> None:
    for session in agentic(Random(1), 50):
        assert session.steps[0].tool_s == 0
        assert all(step.tool_s > 0 for step in session.steps[1:])


def test_sessions_have_conversations_of_their_own() -> None:
    sessions = agentic(Random(1), 50)

    assert len({next(session.calls).template for session in sessions}) == 50
