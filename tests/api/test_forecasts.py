"""Which workflows are late, and which are about to be."""

from typing import Any

import pytest

from gateway.api.forecasts import MAX_ENDED, MAX_OPEN, workflows
from gateway.core.events import Arrived, Event, Finished, WorkflowCompleted
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import ANONYMOUS, RequestId, WorkflowKey, WorkflowRef
from gateway.telemetry.timelines import Timelines
from tests.builders import a_backend, a_request

ANSWER_S = 10.0
"""100 tokens at 100 ms, about."""


class Watched:
    """A scheduler and what is shown of its workflows."""

    def __init__(self) -> None:
        self.scheduler = Scheduler([a_backend("b")], policy_from_name("hexsage"))
        self.timelines = Timelines()

    def feed(self, event: Event, now: float) -> None:
        self.timelines.observe(now, event, self.scheduler.handle(event, now))

    def call(self, workflow: str, now: float, deadline_s: float | None = None) -> str:
        ref = WorkflowRef(key=WorkflowKey(ANONYMOUS, workflow), deadline_s=deadline_s, stage="s")
        name = f"{workflow}-{now}"
        self.feed(Arrived(a_request(name, answer_tokens=100, workflow=ref)), now)
        return name

    def shown(self, now: float) -> dict[str, Any]:
        return workflows(self.timelines, self.scheduler, now)


def test_in_most_need_are_those_about_to_be_late() -> None:
    watched = Watched()
    watched.call("no-deadline", 0.0)
    watched.call("late", 0.0, deadline_s=1.0)
    watched.call("on-time", 0.0, deadline_s=10 * ANSWER_S)
    watched.call("at-risk", 0.0, deadline_s=0.5 * ANSWER_S)
    shown = watched.shown(now=2.0)

    assert [run["id"] for run in shown["open"]] == ["at-risk", "late", "on-time", "no-deadline"]
    assert (shown["known"], shown["late"], shown["at_risk"]) == (4, 1, 1)
    at_risk, late, on_time, without = shown["open"]
    assert at_risk["is_at_risk"]
    assert at_risk["done_ms"] > at_risk["deadline_ms"] == 0.5 * ANSWER_S * 1000
    assert late["is_late"]
    assert not on_time["is_late"]
    assert not on_time["is_at_risk"]
    assert without["deadline_ms"] is None
    assert on_time["spans"][0]["state"] == "running"
    assert on_time["spans"][0]["until_ms"] == on_time["elapsed_ms"] == 2000


def test_in_tool_time_the_rest_is_what_finished_runs_took_beyond_what_is_done() -> None:
    watched = Watched()
    for workflow, steps in (("taught", 2), ("asked", 1)):
        for step in range(steps):
            name = watched.call(workflow, float(step))
            watched.feed(Finished(RequestId(name), output_tokens=100), step + 0.5)
    assert watched.shown(now=3.0)["open"][0]["done_ms"] is None  # nobody has finished yet
    watched.feed(WorkflowCompleted(WorkflowKey(ANONYMOUS, "taught")), 3.0)
    shown = watched.shown(now=4.5)

    (run,) = shown["open"]
    assert (run["id"], run["doing"]) == ("asked", "tools")
    assert run["done_ms"] == pytest.approx(4500 + ANSWER_S * 1000, rel=0.05)
    (over,) = shown["ended"]
    assert (over["id"], over["doing"], over["ended_ms_ago"]) == ("taught", "completed", 1500.0)
    assert [span["state"] for span in over["spans"]] == ["completed", "completed"]


def test_what_is_shown_is_bounded() -> None:
    watched = Watched()
    for number in range(MAX_OPEN + 5):
        watched.call(f"w{number:02}", float(number))
    for number in range(MAX_ENDED + 5):
        name = watched.call(f"x{number:02}", 100.0)
        watched.feed(Finished(RequestId(name), output_tokens=5), 101.0)
        watched.feed(WorkflowCompleted(WorkflowKey(ANONYMOUS, f"x{number:02}")), 101.0)
    shown = watched.shown(now=102.0)

    assert (len(shown["open"]), len(shown["ended"])) == (MAX_OPEN, MAX_ENDED)
    assert shown["known"] == MAX_OPEN + 5
