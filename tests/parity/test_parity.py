"""Parity: the live driver in virtual time and the simulator decide alike on the same trace."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import QueueLimits
from gateway.core.commands import Command, Evict, Recall, Reject, Settle, Start, Stop, WorkflowEnded
from gateway.core.events import Arrived, Event
from gateway.core.policies import POLICIES, policy_from_name
from gateway.core.profiles import GpuProfile
from gateway.core.scheduler import Scheduler
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import BackendId
from gateway.core.workflow import Workflows
from gateway.sim.engine import EngineModel
from gateway.sim.history import StageHistory
from gateway.sim.simulator import MODEL, Arrival, Fault, FaultKind, simulate
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow
from tests.builders import a_backend
from tests.parity.live import LiveRun, Log
from tests.virtual_time import run_in_virtual_time

NAMES = (*POLICIES, "weighted_jsq+edf", "p2c+srpt", "completion+llf")
TEMPLATE = WorkflowSpec(
    name="declared",
    stages=(StageSpec(name="long"), StageSpec(name="short", depends_on=("long",))),
    deadline_s=9.0,
)


def a_gpu(slowness: float, kv_tokens: int) -> GpuProfile:
    """Constants whose sums never meet: no two things of two engines happen at one instant."""
    return GpuProfile(
        name="irrational",
        prefill_s_per_token=0.001 * math.sqrt(2) * slowness,
        decode_base_s=0.01 * math.sqrt(3) * slowness,
        kv_read_s_per_token=0.00001 * math.sqrt(5) * slowness,
        step_overhead_s=0.001 * math.sqrt(7) * slowness,
        kv_tokens=kv_tokens,
        max_batched_tokens=256,
        max_num_seqs=6,
    )


BACKENDS = (
    a_backend("a", profile=a_gpu(1.0, 1600), models=frozenset({MODEL}), max_in_flight=5),
    a_backend(
        "b", profile=a_gpu(math.pi, 960), models=frozenset({MODEL}), priority_scheduling=True
    ),
    a_backend("c", profile=a_gpu(math.e / 2, 1280), models=frozenset({MODEL}), weight=2.0),
)

calls = st.builds(
    lambda stage, prompt_tokens, output_tokens: TraceCall(
        stage=stage,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        template="t",
        template_tokens=min(prompt_tokens, 64),
    ),
    st.sampled_from(["long", "short", "other"]),
    st.integers(10, 500),
    st.integers(1, 80),
)
steps = st.builds(
    lambda step_calls, tool_ms: TraceStep(
        calls=tuple(step_calls), tool_s=tool_ms / 1000 * math.sqrt(11)
    ),
    st.lists(calls, min_size=1, max_size=3),
    st.integers(0, 900),
)
workflows = st.builds(
    lambda name, made: TraceWorkflow(name=name, steps=tuple(made[:1] if name == SINGLE else made)),
    st.sampled_from([SINGLE, "learned", "declared"]),
    st.lists(steps, min_size=1, max_size=3),
)
faults = st.builds(
    lambda ms, backend_id, kind: Fault(
        at=ms / 1000 + math.sqrt(13) / 1e6, backend_id=backend_id, kind=kind, factor=2.5
    ),
    st.integers(0, 6_000),
    st.sampled_from([backend.id for backend in BACKENDS]),
    st.sampled_from(FaultKind),
)


def a_scheduler(policy: str, timeout_s: float) -> Scheduler:
    """Return a fresh one; those of one run are alike."""
    return Scheduler(
        BACKENDS,
        policy_from_name(policy),
        limits=QueueLimits(max_requests=12, timeout_s=timeout_s),
        workflows=Workflows({"declared": TEMPLATE}, idle_timeout_s=math.sqrt(300)),
    )


def engines() -> dict[BackendId, EngineModel]:
    """Return a fresh engine for each backend."""
    return {
        backend.id: EngineModel(backend.profile, priority_scheduling=backend.priority_scheduling)
        for backend in BACKENDS
    }


def told(log: Log) -> list[object]:
    """Return what happened and what was decided; instants and scores to nine digits.

    Timers of a real loop may be a rounding error late.
    """
    return [
        (_digits(at), _event(event), [_command(command) for command in commands])
        for at, event, commands in log
    ]


def _event(event: Event) -> object:
    return event.request.id if isinstance(event, Arrived) else event


def _command(command: Command) -> object:
    match command:
        case Start(request_id, backend_id, priority, decision, attempt):
            scores = sorted((name, _digits(score)) for name, score in decision.scores.items())
            waited = _digits(decision.queue_s)
            return ("start", request_id, backend_id, priority // 1000, scores, waited, attempt)
        case Settle():
            return (
                "settle",
                command.request_id,
                command.outcome,
                command.reason,
                command.backend_id,
                command.attempts,
                command.first_token_at is None,
            )
        case Stop(request_id, backend_id, reason):
            return ("stop", request_id, backend_id, reason)
        case Reject(request_id, reason) | Evict(request_id, reason):
            return (type(command).__name__, request_id, reason)
        case Recall():
            raise AssertionError("nothing hangs here")
        case WorkflowEnded():
            return ("ended", command.key, command.state, command.calls, _digits(command.ended_at))


def _digits(number: float) -> float:
    return float(f"{number:.9g}")


@pytest.mark.parametrize("policy", NAMES)
@given(
    made=st.dictionaries(st.integers(0, 4_000), workflows, max_size=10),
    struck=st.lists(faults, max_size=3, unique_by=lambda fault: fault.at),
    timeout_s=st.sampled_from([math.sqrt(0.5), 60.0]),
)
@settings(max_examples=12, deadline=None)
def test_live_and_simulated_runs_of_a_trace_decide_alike(
    policy: str, made: dict[int, TraceWorkflow], struck: list[Fault], timeout_s: float
) -> None:
    arrivals = [
        Arrival(id=f"w{ms}", at=ms / 1000, workflow=workflow, deadline_s=(None, 3.0, 30.0)[ms % 3])
        for ms, workflow in made.items()
    ]
    history = StageHistory(made.values())

    simulated = simulate(
        arrivals,
        a_scheduler(policy, timeout_s),
        engines(),
        history.predict,
        faults=struck,
        keep_log=True,
    )
    requests = {
        str(event.request.id): event.request
        for _, event, _ in simulated.log
        if isinstance(event, Arrived)
    }
    live = LiveRun(a_scheduler(policy, timeout_s), engines(), requests)
    log = run_in_virtual_time(live.play(arrivals, struck))

    assert told(log) == told(simulated.log)
