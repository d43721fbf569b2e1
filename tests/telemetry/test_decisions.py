"""The decision log, in memory and on disk."""

import json
from pathlib import Path

import pytest

from gateway.core.events import Arrived, Finished
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import RequestId
from gateway.telemetry.decisions import MAX_RECENT, DecisionLog, Recent, encode
from tests.builders import a_backend, a_request, a_workflow


def test_what_was_decided_can_be_read_back_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, now=5.0)
    scheduler = Scheduler([a_backend("b")], policy_from_name("round_robin+fcfs"))
    for now, event in (
        (6.0, Arrived(a_request("r", workflow=a_workflow("w", stage="s", final=True)))),
        (7.0, Finished(RequestId("r"), 10)),
    ):
        log.observe(now, event, scheduler.handle(event, now))
    log.close()

    lines = [json.loads(line) for line in path.read_text().splitlines()]

    kinds = [(line["at"], line["type"]) for line in lines]
    assert kinds == [
        (5.0, "Opened"),
        (6.0, "Arrived"),
        (6.0, "Start"),
        (7.0, "Settle"),
        (7.0, "WorkflowEnded"),
    ]
    start, settle = lines[2]["command"], lines[3]["command"]
    assert start["decision"]["scores"].keys() == {"b"}
    assert (settle["outcome"], settle["output_tokens"]) == ("completed", 10)
    assert (settle["workflow"], settle["stage"]) == (["anonymous", "w"], "s")


def test_the_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        DecisionLog(path, now=0.0).close()

    assert len(path.read_text().splitlines()) == 2


def test_only_the_latest_decisions_are_kept_in_memory() -> None:
    recent = Recent()
    scheduler = Scheduler([], policy_from_name("round_robin+fcfs"))
    for number in range(MAX_RECENT + 5):
        event = Arrived(a_request(f"r{number}"))
        recent.observe(float(number), event, scheduler.handle(event, float(number)))

    kept = recent.latest(10 * MAX_RECENT)
    assert len({line["at"] for line in kept}) == MAX_RECENT
    assert kept[-1]["at"] == MAX_RECENT + 4
    assert recent.latest(4) == kept[-4:]
    assert recent.latest(0) == []
    json.loads(encode(kept))


def test_a_full_disk_loses_lines_is_told_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DecisionLog(Path("/dev/full"), now=0.0)
    scheduler = Scheduler([a_backend("b")], policy_from_name("round_robin+fcfs"))
    for number in range(1000):
        event = Arrived(a_request(f"r{number}"))
        log.observe(0.0, event, scheduler.handle(event, 0.0))
    log.close()

    assert log.dropped > 0
    assert len(caplog.messages) == 1
    assert "cannot be written" in caplog.text
