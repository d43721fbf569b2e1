"""arrivals x workload -> Plan: every call decided before the first is sent (pure).

The same seed gives the same plan, and every policy of a sweep is given the same plan: what
differs between two runs is what the system under test did.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from gateway.sim.trace import TraceCall, TraceError, TraceWorkflow
from loadgen import arrivals, prompts
from loadgen.workloads import WORKLOADS

MIN_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call. Ids are unique within a plan; a run puts its own id before them."""

    id: str
    stage: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    """The cap a client would set: one a stage, so that it tells nothing of this answer's length."""
    pieces: tuple[prompts.Piece, ...]
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Calls that go together, `tool_s` after the step before is back."""

    tool_s: float
    calls: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkflow:
    """One workflow with its instant, counted from the run's start, and its deadline."""

    id: str
    index: int
    name: str
    arrival_s: float
    deadline_s: float
    steps: tuple[PlannedStep, ...]

    @property
    def calls(self) -> Iterator[PlannedCall]:
        """Every call, step by step."""
        return (call for step in self.steps for call in step.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run, in engine seconds."""

    seed: int
    qps: float | None
    """Workflows a second; None: arrivals as recorded."""
    workflows: tuple[PlannedWorkflow, ...]

    @property
    def digest(self) -> str:
        """Return a fingerprint: equal for equal plans."""
        return sha256(repr(self.workflows).encode()).hexdigest()[:16]


def drawn(workload: str, count: int, seed: int) -> list[TraceWorkflow]:
    """Return `count` workflows of a built-in workload."""
    return WORKLOADS[workload](Random(f"{seed} {workload}"), count)


def resampled(recorded: Sequence[TraceWorkflow], count: int, seed: int) -> list[TraceWorkflow]:
    """Return `count` recorded workflows in random order, each as often as the others (+-1)."""
    rng = Random(f"{seed} trace")
    chosen: list[TraceWorkflow] = []
    while len(chosen) < count:
        chosen.extend(rng.sample(recorded, min(len(recorded), count - len(chosen))))
    return chosen


def arrival_instants(
    workflows: Sequence[TraceWorkflow], *, qps: float | None, seed: int, cv: float
) -> list[float]:
    """Return an instant a workflow: random at a rate, or as recorded where there is none."""
    if qps is not None:
        return arrivals.at_rate(
            arrivals.unit_gaps(Random(f"{seed} arrivals"), len(workflows), cv), qps
        )
    recorded = [workflow.arrival_s for workflow in workflows if workflow.arrival_s is not None]
    if len(recorded) < len(workflows):
        raise TraceError("the trace records no arrival times: give a rate with --qps")
    return arrivals.replay(recorded)


def build(
    workflows: Sequence[TraceWorkflow],
    instants: Sequence[float],
    *,
    seed: int,
    qps: float | None,
    deadline_s: float,
) -> Plan:
    """Fix ids, prompts, caps and deadlines; `deadline_s` is for workflows that bring none."""
    caps = _caps(workflows)
    owners = _owners(workflows)
    order = sorted(range(len(workflows)), key=lambda number: (instants[number], number))
    planned = []
    for index, number in enumerate(order):
        workflow = workflows[number]
        own_deadline_s = workflow.deadline_s
        planned.append(
            PlannedWorkflow(
                id=f"w{index}",
                index=index,
                name=workflow.name,
                arrival_s=instants[number],
                deadline_s=deadline_s if own_deadline_s is None else own_deadline_s,
                steps=_steps(workflow, f"w{index}", caps, owners),
            )
        )
    return Plan(seed=seed, qps=qps, workflows=tuple(planned))


def _steps(
    workflow: TraceWorkflow, workflow_id: str, caps: Mapping[str, int], owners: Mapping[str, int]
) -> tuple[PlannedStep, ...]:
    conversations: dict[str, tuple[tuple[int, ...], int]] = {}
    steps = []
    sent = 0
    total = sum(len(step.calls) for step in workflow.steps)
    for step in workflow.steps:
        calls = []
        for call in step.calls:
            sent += 1
            call_id = f"{workflow_id}-{sent}"
            calls.append(
                PlannedCall(
                    id=call_id,
                    stage=call.stage,
                    prompt_tokens=call.prompt_tokens,
                    output_tokens=call.output_tokens,
                    max_tokens=caps[call.stage],
                    pieces=_pieces(call, call_id, owners, conversations),
                    # A fan-out's siblings may end after the call sent last: only a lone
                    # last call can close its workflow.
                    is_final=sent == total and len(step.calls) == 1,
                )
            )
        steps.append(PlannedStep(tool_s=step.tool_s, calls=tuple(calls)))
    return tuple(steps)


def _pieces(
    call: TraceCall,
    call_id: str,
    owners: Mapping[str, int],
    conversations: dict[str, tuple[tuple[int, ...], int]],
) -> tuple[prompts.Piece, ...]:
    """A prompt that is all template is a conversation: later turns repeat it and go on."""
    is_shared = call.template is not None and owners[call.template] > 1
    if call.template is None or call.template_tokens < call.prompt_tokens:
        return prompts.pieces_of(
            template=call.template,
            template_tokens=call.template_tokens,
            prompt_tokens=call.prompt_tokens,
            call_id=call_id,
            is_shared=is_shared,
        )
    ends, answer_tokens = conversations.get(call.template, ((), 0))
    if ends and call.prompt_tokens >= ends[-1] + 2:
        answered = min(ends[-1] + answer_tokens, call.prompt_tokens - 1)
        ends = (*ends, answered, call.prompt_tokens)
    else:
        ends = (call.prompt_tokens,)
    conversations[call.template] = (ends, call.output_tokens)
    return prompts.conversation(call.template, ends, is_shared=is_shared)


def _caps(workflows: Sequence[TraceWorkflow]) -> dict[str, int]:
    longest: dict[str, int] = defaultdict(int)
    for workflow in workflows:
        for call in workflow.calls:
            longest[call.stage] = max(longest[call.stage], call.output_tokens, MIN_MAX_TOKENS)
    return {stage: 1 << (tokens - 1).bit_length() for stage, tokens in longest.items()}


def _owners(workflows: Sequence[TraceWorkflow]) -> dict[str, int]:
    """Count the workflows that use each template."""
    owners: dict[str, int] = defaultdict(int)
    for workflow in workflows:
        for template in {call.template for call in workflow.calls if call.template is not None}:
            owners[template] += 1
    return owners
