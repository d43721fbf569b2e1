"""Tests of loadgen.workloads.chat."""

from random import Random

import numpy as np
import pytest

from loadgen.workloads.chat import chat


def test_chats_are_single_calls_with_the_quantiles_of_the_azure_conversation_trace() -> None:
    calls = [list(workflow.calls) for workflow in chat(Random(1), 5000)]

    assert {len(own) for own in calls} == {1}
    prompts = [own[0].prompt_tokens for own in calls]
    outputs = [own[0].output_tokens for own in calls]
    assert np.percentile(prompts, [5, 50, 95]) == pytest.approx([181, 1020, 4083], rel=0.1)
    assert np.percentile(outputs, [5, 50, 95]) == pytest.approx([41, 129, 451], rel=0.1)
