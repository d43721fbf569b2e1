"""Open workflows on a time axis: what waited, ran, and when each should be done (pure)."""

from enum import IntEnum
from math import inf

from gateway.api.snapshots import ms
from gateway.core.call import Call, CallState
from gateway.core.scheduler import Scheduler
from gateway.core.workflow import WorkflowRun, Workflows
from gateway.telemetry.timelines import Span, Timeline, Timelines

MAX_OPEN = 16
MAX_ENDED = 4
MAX_SPANS_SHOWN = 60


class _Need(IntEnum):
    """In this order they are shown."""

    RISK = 0
    LATE = 1
    NONE = 2


def workflows(timelines: Timelines, scheduler: Scheduler, now: float) -> dict[str, object]:
    """Return the open workflows that are in most need, and the latest that ended.

    Those about to be late first, then those that are late, then the others by what is left to
    them; those without a deadline come last, the oldest first.
    """
    open_ones: list[tuple[int, float, float, dict[str, object]]] = []
    ended: list[dict[str, object]] = []
    at_risk = late = 0
    for timeline in timelines:
        if timeline.ended is not None:
            if len(ended) < MAX_ENDED:
                ended.append(_ended(timeline, now))
            continue
        run = scheduler.workflows.get(timeline.key)
        if run is None:
            continue
        done_at = done_at_of(run, scheduler.workflows, now)
        slack_s, need = inf, _Need.NONE
        if run.deadline_at is not None:
            slack_s = run.deadline_at - (now if done_at is None else max(done_at, now))
            need = _Need.LATE if now > run.deadline_at else _Need.RISK if slack_s < 0 else need
            late += need is _Need.LATE
            at_risk += need is _Need.RISK
        told = _open(timeline, run, scheduler, done_at, need, now)
        open_ones.append((need, abs(slack_s), run.opened_at, told))
    open_ones.sort(key=lambda one: one[:3])
    return {
        "known": len(open_ones),
        "at_risk": at_risk,
        "late": late,
        "open": [told for *_, told in open_ones[:MAX_OPEN]],
        "ended": ended,
    }


def done_at_of(run: WorkflowRun, known: Workflows, now: float) -> float | None:
    """Return when the run should be over if nothing else comes between; None if that is unknown.

    From its open calls and what finished runs had left at the same stages; in tool time, from
    what such a run takes in all.
    """
    if run.calls:
        return max(_call_leads_to(call, now) for call in run.calls.values())
    total_s = known.expected_total_s(run)
    if total_s is None:
        return None
    return now + max(total_s - sum(visit.own_s for visit in run.path), 0.0)


def _call_leads_to(call: Call, now: float) -> float:
    after_s = call.remaining_s - call.reference_s
    if call.state is CallState.RUNNING and call.started_at is not None and call.decision:
        return max(call.started_at + call.decision.predicted_s, now) + after_s
    return now + call.reference_s + after_s


def _open(
    timeline: Timeline,
    run: WorkflowRun,
    scheduler: Scheduler,
    done_at: float | None,
    need: "_Need",
    now: float,
) -> dict[str, object]:
    deadline_at = run.deadline_at
    return {
        **_named(timeline),
        "doing": _doing(run),
        "elapsed_ms": ms(now - run.opened_at),
        "deadline_ms": None if deadline_at is None else ms(deadline_at - run.opened_at),
        "done_ms": None if done_at is None else ms(done_at - run.opened_at),
        "is_late": need is _Need.LATE,
        "is_at_risk": need is _Need.RISK,
        "calls": run.total_calls,
        "spans": [
            _span(span, run.opened_at, scheduler.calls.get(span.request_id), now)
            for span in timeline.spans[-MAX_SPANS_SHOWN:]
        ],
    }


def _ended(timeline: Timeline, now: float) -> dict[str, object]:
    ended = timeline.ended
    assert ended is not None
    return {
        **_named(timeline),
        "doing": ended.state,
        "elapsed_ms": ms(ended.ended_at - ended.opened_at),
        "deadline_ms": None
        if ended.deadline_at is None
        else ms(ended.deadline_at - ended.opened_at),
        "done_ms": None,
        "is_late": ended.is_late,
        "is_at_risk": False,
        "calls": ended.calls,
        "ended_ms_ago": ms(now - ended.ended_at),
        "spans": [
            _span(span, ended.opened_at, None, now) for span in timeline.spans[-MAX_SPANS_SHOWN:]
        ],
    }


def _named(timeline: Timeline) -> dict[str, object]:
    return {"id": timeline.key.id, "tenant": timeline.key.tenant, "name": timeline.name}


def _doing(run: WorkflowRun) -> str:
    states = {call.state for call in run.calls.values()}
    if CallState.RUNNING in states:
        return "running"
    return "waiting" if states else "tools"


def _span(span: Span, opened_at: float, call: Call | None, now: float) -> dict[str, object]:
    """Return one call; instants count from the workflow's opening."""
    until = now if span.ended_at is None else span.ended_at
    started_at = span.started_at
    return {
        "request_id": span.request_id,
        "stage": span.stage,
        "backend": span.backend_id,
        "from_ms": ms(span.arrived_at - opened_at),
        "started_ms": None if started_at is None else ms(started_at - opened_at),
        "until_ms": ms(until - opened_at),
        "state": span.outcome.value if span.outcome else call.state.value if call else "leaving",
    }
