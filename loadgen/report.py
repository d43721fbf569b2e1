"""records -> Report (pure): percentiles, attainment, goodput, by policy and rate.

A *cell* is one policy at one rate, over all seeds. Latency, attainment and goodput are of the
workflows that arrived in the middle of a run. Throughput is of whole runs, from the first arrival
to the last answer, as `vllm bench serve` has it. Everything is in engine seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadgen.records import OK, CallRecord, Run, WorkflowRecord
from loadgen.statistics import Latency, summary

SLO_SCALES = (1.5, 2.0, 3.0, 4.0, 5.0, 8.0)
"""Deadlines at which attainment is reported, in multiples of T0."""
LAG_LIMIT = 0.02
"""Above this share of a workflow's latency, the generator's own lateness spoils the figures."""
RATIO_LIMIT = 0.1
"""How far token counts of the engines may be from the plan's before it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One stage's calls, from sent to last token."""

    stage: str
    calls: int
    latency: Latency
    mean_ttft_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A measured workflow, to be found again under another policy by seed and index."""

    seed: int
    index: int
    arrival_s: float
    latency_s: float | None
    """None: it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy at one rate."""

    policy: str
    qps: float | None
    seeds: tuple[int, ...]
    plans: tuple[str, ...]
    """Digest of each run's plan: equal digests mean the same calls at the same instants."""
    planned: int
    measured: tuple[Paired, ...]
    arrived_in_s: float
    """From the first to the last arrival of measured workflows, and a mean gap more."""
    on_time: int
    """Measured workflows that met their own deadline."""
    workflow: Latency | None
    """Of completed workflows, from planned arrival to the end of the last call."""
    attainment: Mapping[float, float]
    """SLO scale -> share of measured workflows within scale x T0; a failed one is late."""
    goodput_per_s: float
    """Measured workflows that met their own deadline, a second of the time they arrived in."""
    duration_s: float
    """Of the runs, from the first arrival to the last answer."""
    throughput_per_s: float
    """Workflows completed a second of the runs' duration."""
    calls_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    calls: int
    """Completed calls of measured workflows; the figures from here on are theirs."""
    ttlt: Latency | None
    """Time to the last token, from sent."""
    ttft: Latency | None
    tpot: Latency | None
    """Time per output token after the first."""
    prompt_tokens: int
    output_tokens: int
    stages: tuple[StageReport, ...]
    failures: Mapping[str, int]
    """Outcome -> calls, over the whole runs."""
    lag: Latency | None
    """How late the generator sent calls, over the whole runs."""
    lag_share: float
    """Mean share of a workflow's latency that is the generator's own lateness."""
    prompt_ratio: float | None
    """Prompt tokens as the engines counted them / as planned."""
    output_ratio: float | None
    """The same of answers."""
    is_complete: bool
    """False: a run was interrupted."""

    @property
    def rate_per_s(self) -> float:
        """The offered rate: as asked for, or as measured where a recording was replayed."""
        return self.qps or _share(len(self.measured), self.arrived_in_s)

    @property
    def deadline_attainment(self) -> float:
        """Share of measured workflows that met their own deadline."""
        return self.on_time / len(self.measured) if self.measured else 0.0


def cells_of(runs: Sequence[Run], *, base_s: float, cut: float) -> list[Cell]:
    """Summarise runs by rate and policy; `cut` is dropped from each end of a run.

    Rates and policies come in the order in which they first appear among the runs.
    """
    groups: dict[tuple[float | None, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.qps, run.policy].append(run)
    rates = dict.fromkeys(qps for qps, _ in groups)
    policies = dict.fromkeys(policy for _, policy in groups)
    return [
        _cell(groups[qps, policy], base_s, cut)
        for qps in rates
        for policy in policies
        if (qps, policy) in groups
    ]


def warnings_of(cells: Iterable[Cell]) -> list[str]:
    """Say what a reader must know before believing the figures."""
    return [
        f"{cell.policy} at {cell.rate_per_s:.3g}/s: {text}"
        for cell in cells
        for text in _warnings(cell)
    ]


def _warnings(cell: Cell) -> Iterator[str]:
    if not cell.is_complete:
        yield "the run was interrupted; figures are of what had ended"
    if cell.failures:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(cell.failures.items()))
        yield f"calls failed ({kinds}); their workflows count as late and have no latency"
    if cell.lag_share > LAG_LIMIT:
        yield (
            f"the load generator itself was late: {cell.lag_share:.1%} of workflow latency is "
            "its own doing; lower --speed or the rate"
        )
    for what, ratio in (("prompts", cell.prompt_ratio), ("answers", cell.output_ratio)):
        if ratio is not None and abs(ratio - 1) > RATIO_LIMIT:
            yield f"the engines counted {ratio:.2f} x the planned tokens of {what}"


def _cell(runs: Sequence[Run], base_s: float, cut: float) -> Cell:
    parts = [_Measured(run, cut) for run in runs]
    workflows = [workflow for part in parts for workflow in part.workflows]
    calls = [call for part in parts for call in part.calls]
    done = [workflow for workflow in workflows if workflow.outcome == OK]
    on_time = sum(workflow.latency_s <= workflow.deadline_s for workflow in done)
    arrived_in_s = sum(part.arrived_in_s for part in parts)
    duration_s = sum(part.duration_s for part in parts)
    all_calls = [call for run in runs for call in run.calls if call.outcome == OK]
    return Cell(
        policy=runs[0].policy,
        qps=runs[0].qps,
        seeds=tuple(run.seed for run in runs),
        plans=tuple(run.plan for run in runs),
        planned=sum(run.planned for run in runs),
        measured=tuple(paired for part in parts for paired in part.paired),
        arrived_in_s=arrived_in_s,
        on_time=on_time,
        workflow=summary([workflow.latency_s for workflow in done]),
        attainment={
            scale: _share(sum(one.latency_s <= scale * base_s for one in done), len(workflows))
            for scale in SLO_SCALES
        },
        goodput_per_s=_share(on_time, arrived_in_s),
        duration_s=duration_s,
        throughput_per_s=_share(
            sum(workflow.outcome == OK for run in runs for workflow in run.workflows), duration_s
        ),
        calls_per_s=_share(len(all_calls), duration_s),
        prompt_tokens_per_s=_share(sum(call.prompt_tokens for call in all_calls), duration_s),
        output_tokens_per_s=_share(
            sum(call.usage_output_tokens or 0 for call in all_calls), duration_s
        ),
        calls=len(calls),
        ttlt=summary([call.latency_s for call in calls]),
        ttft=summary(_ttfts(calls)),
        tpot=summary(_tpots(calls)),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        output_tokens=sum(call.usage_output_tokens or 0 for call in calls),
        stages=_stages(calls),
        failures=dict(
            Counter(call.outcome for run in runs for call in run.calls if call.outcome != OK)
        ),
        lag=summary([call.lag_s for run in runs for call in run.calls]),
        lag_share=_share(
            sum(part.lag_s for part in parts), sum(workflow.latency_s for workflow in done)
        ),
        prompt_ratio=_usage_ratio(
            [(call.usage_prompt_tokens, call.prompt_tokens) for call in calls]
        ),
        output_ratio=_usage_ratio(
            [(call.usage_output_tokens, call.output_tokens) for call in calls]
        ),
        is_complete=all(len(run.workflows) == run.planned for run in runs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One workflow under one policy, call by call."""

    policy: str
    workflow: WorkflowRecord
    calls: tuple[CallRecord, ...]


def slowest(runs: Sequence[Run], cut: float) -> list[Timeline]:
    """Return the first policy's slowest workflow at the highest rate, under every policy."""
    highest = max((run.qps or 0.0 for run in runs), default=0.0)
    shown = [run for run in runs if (run.qps or 0.0) == highest]
    candidates = [
        (workflow, run.seed)
        for run in shown
        if run.policy == runs[0].policy
        for workflow in _Measured(run, cut).workflows
        if workflow.outcome == OK
    ]
    if not candidates:
        return []
    worst, seed = max(candidates, key=lambda candidate: candidate[0].latency_s)
    timelines = [
        Timeline(
            policy=run.policy,
            workflow=workflow,
            calls=tuple(call for call in run.calls if call.workflow_index == worst.index),
        )
        for run in shown
        if run.seed == seed
        for workflow in run.workflows
        if workflow.index == worst.index
    ]
    return sorted(timelines, key=lambda timeline: timeline.policy != runs[0].policy)


class _Measured:
    """The part of a run that counts."""

    def __init__(self, run: Run, cut: float) -> None:
        ordered = sorted(run.workflows, key=lambda one: one.index)
        first = int(run.planned * cut)
        last = run.planned - first
        self.workflows = [one for one in ordered if first <= one.index < last]
        indices = {one.index for one in self.workflows}
        self.calls = [
            call for call in run.calls if call.workflow_index in indices and call.outcome == OK
        ]
        self.paired = [
            Paired(
                seed=run.seed,
                index=one.index,
                arrival_s=one.arrival_s,
                latency_s=one.latency_s if one.outcome == OK else None,
            )
            for one in self.workflows
        ]
        self.arrived_in_s = _arrived_in_s([one.arrival_s for one in self.workflows])
        self.duration_s = max((one.ended_at_s for one in run.workflows), default=0.0) - min(
            (one.arrival_s for one in run.workflows), default=0.0
        )

    @property
    def lag_s(self) -> float:
        """The generator's lateness along all workflows: the latest call of each step."""
        latest: dict[tuple[int, int], float] = defaultdict(float)
        for call in self.calls:
            key = (call.workflow_index, call.step)
            latest[key] = max(latest[key], call.lag_s)
        return sum(latest.values())


def _arrived_in_s(arrivals: Sequence[float]) -> float:
    """Return n mean gaps for n arrivals: there are only n - 1 between them."""
    count = len(arrivals)
    return (max(arrivals) - min(arrivals)) * count / (count - 1) if count > 1 else 0.0


def _ttfts(calls: Iterable[CallRecord]) -> list[float]:
    return [
        call.first_token_at_s - call.sent_at_s
        for call in calls
        if call.first_token_at_s is not None
    ]


def _tpots(calls: Iterable[CallRecord]) -> list[float]:
    return [
        (call.ended_at_s - call.first_token_at_s) / (call.usage_output_tokens - 1)
        for call in calls
        if call.first_token_at_s is not None
        if call.usage_output_tokens is not None and call.usage_output_tokens > 1
    ]


def _stages(calls: Iterable[CallRecord]) -> tuple[StageReport, ...]:
    by_stage: dict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        by_stage[call.stage].append(call)
    reports = []
    for stage, own in by_stage.items():
        latency = summary([call.latency_s for call in own])
        assert latency is not None
        ttfts = _ttfts(own)
        reports.append(
            StageReport(
                stage=stage,
                calls=len(own),
                latency=latency,
                mean_ttft_s=fmean(ttfts) if ttfts else None,
            )
        )
    return tuple(sorted(reports, key=lambda one: -one.calls * one.latency.mean_s))


def _usage_ratio(counted_and_planned: Iterable[tuple[int | None, int]]) -> float | None:
    known = [(counted, planned) for counted, planned in counted_and_planned if counted is not None]
    if not known:
        return None
    return sum(counted for counted, _ in known) / sum(planned for _, planned in known)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
