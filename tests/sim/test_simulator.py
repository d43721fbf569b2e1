"""simulate: small runs by hand, and what holds in all of them."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import UNBOUNDED, QueueLimits
from gateway.core.commands import Settle, Start
from gateway.core.events import Arrived
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.policies import POLICIES, PolicySettings, policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId
from gateway.core.workflow import Workflows
from gateway.sim.engine import EngineModel
from gateway.sim.history import oracle
from gateway.sim.simulator import MODEL, Arrival, Fault, FaultKind, Run, simulate
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow
from tests.builders import a_backend, a_profile

A, B = BackendId("a"), BackendId("b")


def backend(name: str, *, slowness: float = 1.0, kv_tokens: int = 100_000) -> Backend:
    """A backend of the simulated model."""
    profile = a_profile(slowness=slowness, kv_tokens=kv_tokens)
    return a_backend(name, profile=profile, models=frozenset({MODEL}))


def step(*output_tokens: int, tool_s: float = 0.0, prompt_tokens: int = 100) -> TraceStep:
    """Calls that go together: 100 prompt tokens take a step of 0.1 s, as does each token."""
    calls = tuple(
        TraceCall(stage="s", prompt_tokens=prompt_tokens, output_tokens=n) for n in output_tokens
    )
    return TraceStep(calls=calls, tool_s=tool_s)


def arrival(name: str, at: float, *steps: TraceStep, deadline_s: float | None = None) -> Arrival:
    """A workflow of these steps."""
    workflow = TraceWorkflow(name="t", steps=steps)
    return Arrival(id=name, at=at, workflow=workflow, deadline_s=deadline_s)


def single(name: str, at: float, output_tokens: int, deadline_s: float | None = None) -> Arrival:
    """One independent call."""
    workflow = TraceWorkflow(name=SINGLE, steps=(step(output_tokens),))
    return Arrival(id=name, at=at, workflow=workflow, deadline_s=deadline_s)


def play(
    arrivals: list[Arrival],
    *backends: Backend,
    policy: str = "hexsage",
    limits: QueueLimits = UNBOUNDED,
    faults: tuple[Fault, ...] = (),
    streams: bool = True,
) -> Run:
    """Play these arrivals with known lengths."""
    backends = backends or (backend("a"),)
    scheduler = Scheduler(
        backends,
        policy_from_name(policy, PolicySettings(budget_share=1.0)),
        limits=limits,
        workflows=Workflows(idle_timeout_s=60.0),
    )
    engines = {b.id: EngineModel(b.profile) for b in backends}
    return simulate(
        arrivals, scheduler, engines, oracle, faults=faults, streams=streams, keep_log=True
    )


def latencies(run: Run) -> list[float | None]:
    """How long each workflow took."""
    return [
        None if (s := workflow.latency_s) is None else round(s, 6) for workflow in run.workflows
    ]


# By hand


def test_a_call_takes_its_prefill_and_a_step_a_token() -> None:
    run = play([single("w", 5.0, 11)])

    assert latencies(run) == [pytest.approx(1.1)]
    (settled,) = run.settled
    assert (settled.request_id, settled.outcome) == ("w/0", Outcome.COMPLETED)
    assert settled.arrived_at == 5.0
    assert settled.first_token_at == pytest.approx(5.1)
    assert run.ended_at == pytest.approx(6.1)


def test_the_next_step_begins_when_all_of_the_last_is_back_and_the_tools_are_done() -> None:
    run = play([arrival("w", 0.0, step(11), step(21, 31, tool_s=4.0), step(1))])

    starts = [at for at, event, _ in run.log if isinstance(event, Arrived)]
    # The two calls prefill together (0.2 s) and decode side by side: the longer ends after 3.2 s.
    assert starts == pytest.approx([0.0, 5.1, 5.1, 8.3], abs=0.01)
    assert latencies(run) == [pytest.approx(8.4, abs=0.01)]


def test_only_the_last_call_of_a_workflow_is_final() -> None:
    run = play([arrival("w", 0.0, step(1), step(2, 3))])

    finals = [
        (event.request.id, event.request.workflow.final)
        for _, event, _ in run.log
        if isinstance(event, Arrived) and event.request.workflow
    ]
    assert finals == [("w/0", False), ("w/1", False), ("w/2", True)]


def test_a_deadline_is_the_workflows_or_the_lone_calls_own() -> None:
    run = play([arrival("w", 1.0, step(1), deadline_s=9.0), single("x", 2.0, 1, deadline_s=9.0)])

    requests = {str(e.request.id): e.request for _, e, _ in run.log if isinstance(e, Arrived)}
    workflow = requests["w/0"].workflow
    assert workflow is not None
    assert (workflow.deadline_s, requests["w/0"].deadline_at) == (9.0, None)
    assert (requests["x/0"].workflow, requests["x/0"].deadline_at) == (None, 11.0)
    assert [settled.deadline_at for settled in run.settled] == [10.0, 11.0]


def test_without_streams_nobody_hears_of_first_tokens() -> None:
    run = play([single("w", 0.0, 11)], streams=False)

    assert [type(event).__name__ for _, event, _ in run.log] == ["Arrived", "Finished"]


def test_templates_are_cached() -> None:
    warm = TraceCall(
        stage="s", prompt_tokens=1600, output_tokens=1, template="t", template_tokens=1600 - 16
    )
    workflow = TraceWorkflow(name="t", steps=(TraceStep(calls=(warm,)), TraceStep(calls=(warm,))))

    run = play([Arrival(id="w", at=0.0, workflow=workflow)])

    # 1.6 s the first time; then 16 tokens, which take a whole step.
    assert latencies(run) == [pytest.approx(1.7)]


# Faults


def test_what_a_crashed_engine_had_is_done_by_another() -> None:
    fault = Fault(at=0.5, backend_id=A, kind=FaultKind.FAIL)

    run = play([single("w", 0.0, 11)], backend("a"), backend("b", slowness=2), faults=(fault,))

    (settled,) = run.settled
    assert (settled.backend_id, settled.attempts) == (B, 2)
    assert latencies(run) == [pytest.approx(0.5 + 2.2)]


def test_an_engine_that_recovers_is_used_again() -> None:
    faults = (
        Fault(at=1.0, backend_id=A, kind=FaultKind.FAIL),
        Fault(at=2.0, backend_id=A, kind=FaultKind.RECOVER),
    )

    run = play([single("w", 3.0, 11)], backend("a"), faults=faults)

    assert latencies(run) == [pytest.approx(1.1)]


def test_a_slow_engine_is_slow_and_nobody_is_told() -> None:
    fault = Fault(at=0.0, backend_id=A, kind=FaultKind.SLOW, factor=3.0)

    run = play([single("w", 1.0, 11)], faults=(fault,))

    assert latencies(run) == [pytest.approx(3.3)]
    assert len(run.log) == 3


def test_a_client_gives_up_when_a_call_of_its_workflow_fails() -> None:
    fault = Fault(at=0.5, backend_id=A, kind=FaultKind.FAIL)

    run = play([arrival("w", 0.0, step(11), step(11))], faults=(fault,))

    assert latencies(run) == [None]
    assert [settled.outcome for settled in run.settled] == [Outcome.FAILED]


def test_a_call_no_engine_could_ever_finish_is_an_invalid_one_and_not_the_end() -> None:
    run = play([single("large", 0.0, 950), single("w", 1.0, 11)], backend("a", kv_tokens=1000))

    outcomes = {settled.request_id: settled.outcome for settled in run.settled}
    assert outcomes == {"large/0": Outcome.INVALID, "w/0": Outcome.COMPLETED}


# Limits and ends


def test_calls_that_wait_when_nothing_else_happens_time_out() -> None:
    faults = (Fault(at=0.5, backend_id=A, kind=FaultKind.FAIL),)
    one_at_a_time = replace(backend("a"), max_in_flight=1)

    run = play(
        [single("running", 0.0, 11), single("waiting", 0.1, 11)],
        one_at_a_time,
        limits=QueueLimits(timeout_s=30.0),
        faults=faults,
    )

    reasons = {str(settled.request_id): settled.reason for settled in run.settled}
    assert reasons["waiting/0"] is RejectReason.QUEUE_TIMEOUT
    assert len(run.settled) == 2


def test_a_refused_workflow_sends_nothing_more() -> None:
    one_at_a_time = replace(backend("a"), max_in_flight=1)

    run = play(
        [arrival("w", 0.0, step(5, 5), step(5))],
        one_at_a_time,
        limits=QueueLimits(max_requests=0),
    )

    outcomes = Counter(settled.outcome for settled in run.settled)
    assert outcomes == {Outcome.COMPLETED: 1, Outcome.REJECTED: 1}
    assert latencies(run) == [None]


# Whatever the arrivals

arrival_lists = st.lists(
    st.tuples(
        st.integers(0, 200),  # tenths of a second
        st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=3), min_size=1, max_size=3),
        st.booleans(),  # an independent call?
        st.sampled_from([None, 5.0, 100.0]),
    ),
    max_size=12,
)
fault_lists = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([A, B]), st.sampled_from(FaultKind)), max_size=4
)


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    made=arrival_lists,
    broken=fault_lists,
    timeout_s=st.sampled_from([2.0, 1000.0]),
)
@settings(max_examples=150, deadline=None)
def test_every_call_that_is_sent_is_settled_once_and_the_run_repeats(
    policy: str,
    made: list[tuple[int, list[list[int]], bool, float | None]],
    broken: list[tuple[int, BackendId, FaultKind]],
    timeout_s: float,
) -> None:
    arrivals = [
        single(f"w{number}", at / 10, steps[0][0], deadline_s)
        if is_single
        else arrival(f"w{number}", at / 10, *(step(*s) for s in steps), deadline_s=deadline_s)
        for number, (at, steps, is_single, deadline_s) in enumerate(made)
    ]
    faults = tuple(
        Fault(at=at / 10, backend_id=backend_id, kind=kind, factor=2.0)
        for at, backend_id, kind in broken
    )

    runs = [
        play(
            arrivals,
            backend("a", kv_tokens=400),
            backend("b", slowness=3, kv_tokens=500),
            policy=policy,
            limits=QueueLimits(timeout_s=timeout_s),
            faults=faults,
        )
        for _ in range(2)
    ]

    run = runs[0]
    sent = [event.request.id for _, event, _ in run.log if isinstance(event, Arrived)]
    assert sorted(settled.request_id for settled in run.settled) == sorted(sent)
    instants = [at for at, _, _ in run.log]
    assert instants == sorted(instants)
    completed = Counter(
        settled.request_id.partition("/")[0]
        for settled in run.settled
        if settled.outcome is Outcome.COMPLETED
    )
    for result in run.workflows:
        calls = len(list(result.arrival.workflow.calls))
        assert (result.latency_s is not None) == (completed[result.arrival.id] == calls)
    assert runs[1].log == run.log


def test_commands_are_carried_out_in_the_order_in_which_they_are_given() -> None:
    run = play([single(f"w{n}", n / 10, 5) for n in range(20)], backend("a"), backend("b"))

    started = [c.request_id for _, _, commands in run.log for c in commands if isinstance(c, Start)]
    ended = [c.request_id for _, _, commands in run.log for c in commands if isinstance(c, Settle)]
    assert len(started) == len(ended) == 20
