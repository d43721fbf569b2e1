"""The built-in text-to-SQL workload against the statistics published for the recorded runs."""

from collections import Counter
from random import Random
from statistics import correlation, fmean, stdev
from typing import NamedTuple

import numpy as np
import pytest

from gateway.sim.trace import CANDIDATE_STAGE, TraceCall, TraceWorkflow
from loadgen.workloads.text2sql import text2sql

DRAWN = text2sql(Random(11), 3000)


class Published(NamedTuple):
    """One stage of the recorded runs: 419 workflows of five HexGen-Flow traces."""

    calls: float
    prompt_mean: float
    prompt_p5_p50_p95: tuple[float, float, float]
    output_mean: float
    output_p5_p50_p95_p99: tuple[float, float, float, float]
    sd_log_output: float
    correlation: float


PUBLISHED = {
    "Information Retriever": Published(4.0, 306, (301, 308, 312), 7, (4, 5, 28, 42), 0.58, -0.45),
    "extract_keywords": Published(0.8, 677, (641, 675, 712), 49, (21, 47, 73, 119), 0.42, 0.83),
    CANDIDATE_STAGE: Published(
        2.0, 10790, (7890, 11735, 13958), 672, (402, 620, 1010, 1026), 0.31, 0.74
    ),
    "revise": Published(3.4, 6988, (5724, 7735, 8088), 129, (13, 106, 312, 1011), 0.88, -0.03),
    "unit_tester": Published(3.0, 275, (271, 275, 278), 5, (4, 4, 6, 6), 0.19, -0.90),
    "generate_unit_test": Published(
        1.0, 1145, (813, 1109, 1467), 100, (42, 100, 134, 245), 0.39, 0.14
    ),
    "evaluate": Published(4.9, 1077, (676, 1030, 1901), 30, (22, 22, 96, 169), 0.46, 0.00),
}


def calls_of(stage: str) -> list[TraceCall]:
    return [call for workflow in DRAWN for call in workflow.calls if call.stage == stage]


def stages_of(workflow: TraceWorkflow) -> list[tuple[str, int]]:
    return [(step.calls[0].stage, len(step.calls)) for step in workflow.steps]


@pytest.mark.parametrize("stage", PUBLISHED)
def test_lengths_and_counts_follow_the_published_table(stage: str) -> None:
    """Within 5 % of counts and means, 10 % of quantiles, 0.1 of spread, 0.25 of correlation."""
    published, calls = PUBLISHED[stage], calls_of(stage)
    prompts = [call.prompt_tokens for call in calls]
    outputs = [call.output_tokens for call in calls]

    assert len(calls) / len(DRAWN) == pytest.approx(published.calls, rel=0.05)
    assert fmean(prompts) == pytest.approx(published.prompt_mean, rel=0.05)
    assert fmean(outputs) == pytest.approx(published.output_mean, rel=0.07, abs=1)
    # Candidate prompts are of two lengths and the published median is where the longer begins.
    assert np.percentile(prompts, [5, 50, 95]) == pytest.approx(
        published.prompt_p5_p50_p95, rel=0.1
    )
    assert np.percentile(outputs, [5, 50, 95, 99]) == pytest.approx(
        published.output_p5_p50_p95_p99, rel=0.1, abs=7
    )
    assert stdev(np.log(outputs)) == pytest.approx(published.sd_log_output, abs=0.1)
    assert correlation(prompts, outputs) == pytest.approx(published.correlation, abs=0.25)


def test_stages_come_in_the_published_order() -> None:
    for workflow in DRAWN:
        stages = stages_of(workflow)
        names = [name for name, _ in stages if name != "revise"]
        head = (
            ["Information Retriever", "extract_keywords"]
            if "extract_keywords" in names
            else (["Information Retriever"])
        )
        tail = (
            ["unit_tester", "generate_unit_test", "unit_tester", "evaluate", "unit_tester"]
            if "evaluate" in names
            else ["unit_tester"] * 3
        )
        assert names == [*head, *["Information Retriever"] * 3, CANDIDATE_STAGE, *tail]


def test_candidates_and_evaluations_fan_out_and_everything_else_is_alone() -> None:
    for workflow in DRAWN:
        for stage, calls in stages_of(workflow):
            if stage == CANDIDATE_STAGE:
                assert calls == 2
            elif stage == "evaluate":
                assert 3 <= calls <= 11
            else:
                assert calls == 1


def test_revisions_are_none_in_28_percent_and_spread_up_to_ten_otherwise() -> None:
    counts = Counter(sum(call.stage == "revise" for call in one.calls) for one in DRAWN)

    assert counts[0] / len(DRAWN) == pytest.approx(0.28, abs=0.03)
    assert max(counts) == 10
    assert np.percentile(list(counts.elements()), [50, 95]) == pytest.approx([3, 9], abs=1)


def test_a_workflow_has_16_to_21_calls_on_average() -> None:
    assert fmean(len(list(workflow.calls)) for workflow in DRAWN) == pytest.approx(19, abs=1.5)


def test_prompts_share_the_published_templates() -> None:
    assert {call.template_tokens for call in calls_of(CANDIDATE_STAGE)} == {9158, 5292}
    assert {call.template_tokens for call in calls_of("revise")} == {3059}
    assert {call.template_tokens for call in calls_of("evaluate")} == {261}


def test_the_same_seed_draws_the_same_workflows() -> None:
    assert text2sql(Random(11), 50) == DRAWN[:50]
    assert text2sql(Random(12), 50) != DRAWN[:50]
