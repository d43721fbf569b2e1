"""What the gateway served, told as a trace."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.core.lengths import LengthDistribution
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId
from gateway.core.workflow import Workflows
from gateway.sim import recorder as recorders
from gateway.sim import trace
from gateway.sim.engine import EngineModel
from gateway.sim.recorder import AnsweredCall, Recorder, steps_of
from gateway.sim.simulator import MODEL, Arrival, simulate
from gateway.sim.trace import SINGLE, TraceCall, TraceError, TraceStep, TraceWorkflow
from gateway.telemetry.decisions import encode, lines_of
from tests.builders import a_profile

Log = list[tuple[float, Event, list[Command]]]


def a_call(stage: str = "s", prompt_tokens: int = 100, output_tokens: int = 5) -> TraceCall:
    return TraceCall(stage=stage, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def a_step(*calls: TraceCall, tool_s: float = 0.0) -> TraceStep:
    return TraceStep(calls=calls, tool_s=tool_s)


TWO_STEPS = TraceWorkflow(
    name="w",
    steps=(
        a_step(a_call("a"), a_call("b", output_tokens=9)),
        a_step(a_call("c", prompt_tokens=50), tool_s=2.0),
    ),
    arrival_s=0.0,
    deadline_s=60.0,
)
LONE_CALL = TraceWorkflow(name=SINGLE, steps=(a_step(a_call()),), arrival_s=0.0)


def served(*workflows: tuple[float, TraceWorkflow]) -> Log:
    """Return the decision log of a gateway with one backend that serves these."""
    backend = Backend(id=BackendId("b"), models=frozenset({MODEL}), profile=a_profile())
    arrivals = [
        Arrival(id=f"w{number}", at=at, workflow=workflow, deadline_s=workflow.deadline_s)
        for number, (at, workflow) in enumerate(workflows)
    ]
    run = simulate(
        arrivals,
        Scheduler([backend], policy_from_name("hexsage"), workflows=Workflows()),
        {backend.id: EngineModel(backend.profile)},
        lambda call: LengthDistribution.point(call.output_tokens),
        keep_log=True,
    )
    return run.log


def recorded(log: Log, recorder: Recorder | None = None) -> Recorder:
    recorder = Recorder() if recorder is None else recorder
    for now, event, commands in log:
        recorder.observe(now, event, commands)
    return recorder


def test_a_served_workflow_comes_back_as_it_was_played() -> None:
    recorder = recorded(served((7.0, TWO_STEPS)))

    assert recorder.trace() == [TWO_STEPS]


def test_a_call_without_a_workflow_is_a_trace_of_its_own() -> None:
    recorder = recorded(served((7.0, LONE_CALL)))

    [workflow] = recorder.trace()
    assert workflow.name == SINGLE
    assert [call.prompt_tokens for call in workflow.calls] == [100]


def test_arrivals_count_from_the_first_and_come_in_order() -> None:
    recorder = recorded(served((30.0, LONE_CALL), (10.0, TWO_STEPS)))

    assert [(w.name, w.arrival_s) for w in recorder.trace()] == [("w", 0.0), (SINGLE, 20.0)]


def test_only_the_recent_part_can_be_asked_for() -> None:
    recorder = recorded(served((10.0, TWO_STEPS), (30.0, LONE_CALL)))

    assert [w.name for w in recorder.trace(since=20.0)] == [SINGLE]


def test_the_oldest_recordings_give_way() -> None:
    recorder = recorded(served((10.0, TWO_STEPS), (30.0, LONE_CALL)), Recorder(max_recorded=1))

    assert [w.name for w in recorder.trace()] == [SINGLE]


def test_shared_prefixes_are_kept_as_templates() -> None:
    call = TraceCall(
        stage="s", prompt_tokens=100, output_tokens=5, template="system", template_tokens=64
    )
    recorder = recorded(
        served(
            (1.0, TraceWorkflow(name="w", steps=(a_step(call),))),
            (2.0, TraceWorkflow(name="w", steps=(a_step(call),))),
        )
    )

    first, second = (call for workflow in recorder.trace() for call in workflow.calls)
    assert first.template_tokens == second.template_tokens == 64
    assert first.template is not None
    assert first.template == second.template


def test_a_call_that_could_depend_on_another_begins_a_new_step() -> None:
    calls = [
        AnsweredCall(arrived_at, ended_at, stage, 100, 5, None)
        for stage, arrived_at, ended_at in [("a", 0, 10), ("b", 1, 3), ("c", 4, 8), ("d", 12, 13)]
    ]

    steps = steps_of(calls)

    assert [[call.stage for call in step.calls] for step in steps] == [["a", "b"], ["c"], ["d"]]
    assert [step.tool_s for step in steps] == [0.0, 0.0, 4.0]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_steps_keep_every_call_once_and_never_wait_backwards(spans: list[tuple[int, int]]) -> None:
    calls = [
        AnsweredCall(at, at + took, f"s{number}", 100, 5, None)
        for number, (at, took) in enumerate(spans)
    ]

    steps = steps_of(calls)

    stages = [call.stage for step in steps for call in step.calls]
    assert sorted(stages) == sorted(f"s{number}" for number in range(len(spans)))
    assert all(step.tool_s >= 0 for step in steps)


def write_log(path: Path, log: Log, after: Iterable[bytes] = ()) -> Path:
    lines = [encode({"at": 0.0, "type": "Opened", "time": "2026-01-01T00:00:00+00:00"})]
    lines += [encode(line) for entry in log for line in lines_of(*entry)]
    path.write_bytes(b"".join(line + b"\n" for line in lines) + b"".join(after))
    return path


def test_the_decision_logs_file_is_a_valid_trace(tmp_path: Path) -> None:
    log = served((10.0, TWO_STEPS), (30.0, LONE_CALL))
    path = write_log(tmp_path / "decisions.jsonl", log)

    assert recorders.load(path) == recorded(log).trace()


def test_a_log_that_ends_in_half_a_line_is_read_up_to_there(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", served((10.0, TWO_STEPS)), [b'{"at": 3, "type": "Set'])

    assert len(recorders.load(path)) == 1


def test_other_traces_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(trace.dumps([TWO_STEPS]))

    assert recorders.load(path) == [TWO_STEPS]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param('{"type": "Opened"}\n{"type": "Settle"}\n', "line 2", id="a line is wrong"),
        pytest.param('{"type": "Opened"}\n', "no completed call", id="nothing was served"),
    ],
)
def test_a_log_that_cannot_be_played_is_refused_by_name(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text(content)

    with pytest.raises(TraceError, match=complaint):
        recorders.load(path)
