"""When the calls of a workflow waited and ran."""

from gateway.core.events import Arrived, Event, Finished, WorkflowCompleted
from gateway.core.outcomes import Outcome
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import ANONYMOUS, RequestId, WorkflowKey, WorkflowRef
from gateway.telemetry.timelines import MAX_SPANS, Timelines
from tests.builders import a_backend, a_request


class Watched:
    """A scheduler with one slot, and the timelines of its workflows."""

    def __init__(self, max_timelines: int = 10) -> None:
        backend = a_backend("b", max_in_flight=1)
        self.scheduler = Scheduler([backend], policy_from_name("hexsage"))
        self.timelines = Timelines(max_timelines)

    def feed(self, event: Event, now: float) -> None:
        self.timelines.observe(now, event, self.scheduler.handle(event, now))

    def call(self, name: str, workflow: str, now: float, stage: str = "s") -> None:
        ref = WorkflowRef(key=WorkflowKey(ANONYMOUS, workflow), stage=stage)
        self.feed(Arrived(a_request(name, workflow=ref)), now)


def test_a_call_waits_runs_and_ends_on_its_workflows_line() -> None:
    watched = Watched()
    watched.call("first", "w", now=1.0)
    watched.call("second", "w", now=2.0)
    watched.feed(Finished(RequestId("first"), output_tokens=3), now=5.0)

    (timeline,) = watched.timelines
    first, second = timeline.spans
    assert (first.arrived_at, first.started_at, first.ended_at) == (1.0, 1.0, 5.0)
    assert first.outcome is Outcome.COMPLETED
    assert (second.arrived_at, second.started_at, second.ended_at) == (2.0, 5.0, None)
    assert second.backend_id == "b"
    assert timeline.ended is None


def test_a_workflow_that_ends_and_comes_again_has_a_new_line() -> None:
    watched = Watched()
    watched.call("r1", "w", now=0.0)
    watched.feed(Finished(RequestId("r1"), output_tokens=3), now=1.0)
    watched.feed(WorkflowCompleted(WorkflowKey(ANONYMOUS, "w")), now=1.0)
    (timeline,) = watched.timelines
    assert timeline.ended is not None
    assert timeline.ended.state == "completed"

    watched.call("r2", "w", now=2.0)
    (timeline,) = watched.timelines
    assert timeline.ended is None
    assert [span.request_id for span in timeline.spans] == ["r2"]


def test_calls_without_a_workflow_have_no_line() -> None:
    watched = Watched()
    watched.feed(Arrived(a_request("alone")), now=0.0)

    assert len(watched.timelines) == 0


def test_only_the_latest_workflows_and_the_first_calls_of_each_are_kept() -> None:
    watched = Watched(max_timelines=2)
    for number in range(3):
        watched.call(f"r{number}", f"w{number}", now=float(number))
    watched.call("again", "w1", now=4.0)
    assert [timeline.key.id for timeline in watched.timelines] == ["w1", "w2"]

    for number in range(2 * MAX_SPANS):
        watched.call(f"more-{number}", "w1", now=5.0)
    assert len(next(iter(watched.timelines)).spans) == MAX_SPANS
