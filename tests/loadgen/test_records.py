"""Tests of loadgen.records."""

import orjson
import pytest

from loadgen.records import to_lines
from tests.loadgen.builders import a_call_record, a_run, a_workflow_record


def test_latency_counts_from_the_planned_arrival_and_lag_from_when_a_call_was_due() -> None:
    assert a_workflow_record(arrival_s=3.0, latency_s=4.0).latency_s == pytest.approx(4)
    call = a_call_record(due_at_s=3.0, lag_s=0.5, latency_s=2.0)
    assert (call.lag_s, call.latency_s) == (0.5, 2.0)


def test_a_line_a_call_says_which_run_it_belongs_to() -> None:
    lines = [orjson.loads(line) for line in to_lines(a_run([1.0, 2.0], policy="hexgen", seed=3))]

    assert [(line["policy"], line["qps"], line["seed"], line["id"]) for line in lines] == [
        ("hexgen", 1.0, 3, "w0-0"),
        ("hexgen", 1.0, 3, "w1-0"),
    ]
    assert lines[1]["ended_at_s"] - lines[1]["sent_at_s"] == 2.0
