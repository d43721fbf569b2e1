"""One request as people are told of it: what was known, every candidate, how it ended (pure)."""

from collections.abc import Mapping
from math import isfinite

from gateway.api.snapshots import ms
from gateway.core.call import Call, CallState
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.stages import StageState
from gateway.core.types import BackendId, Decision
from gateway.telemetry.requests import Absence, Attempt, Record, absence

WHY_ABSENT: Mapping[Absence, str] = {
    Absence.DOWN: "it was down",
    Absence.DRAINING: "it was being drained",
    Absence.BREAKER_OPEN: "its breaker was open: too many calls had failed there",
    Absence.TRIED: "it had failed this call before",
    Absence.TOO_SMALL: "its KV cache is smaller than the prompt",
    Absence.NOT_OFFERED: "it has the model, but does not offer this route",
    Absence.NO_MODEL: "it does not serve the model",
}
FULL = "no room: its KV budget or its slots were taken, or kept for calls passed over too often"


def brief(record: Record, now: float) -> dict[str, object]:
    """Return one line of a list."""
    settled = record.settled
    last = record.attempts[-1] if record.attempts else None
    backend = settled.backend_id if settled else last and last.decision.backend_id
    return {
        "request_id": record.id,
        "client_request_id": record.client_id,
        "model": record.model,
        "tenant": record.tenant,
        "workflow": record.workflow_id,
        "workflow_name": record.workflow_name,
        "stage": record.stage,
        "outcome": settled.outcome.value if settled else None,
        "reason": settled.reason.value if settled and settled.reason else None,
        "backend": backend,
        "attempts": len(record.attempts),
        "age_ms": ms(now - record.arrived_at),
        "queue_ms": None if last is None else ms(last.decision.queue_s),
        "total_ms": None if settled is None else ms(settled.ended_at - record.arrived_at),
        "predicted_tokens": round(record.predicted_tokens),
        "output_tokens": settled.output_tokens if settled else None,
    }


def whole(record: Record, scheduler: Scheduler, now: float) -> dict[str, object]:
    """Return everything that is remembered of a request. Instants count from its arrival."""
    settled, attempts = record.settled, record.attempts
    call = None if settled else scheduler.calls.get(record.id)
    state = call.state.value if call else "ended" if settled else "leaving"
    return {
        **brief(record, now),
        "state": state,
        "priority": record.priority,
        "prompt_tokens": settled.prompt_tokens if settled else record.prompt_tokens,
        "prompt_tokens_estimated": record.prompt_tokens,
        "retry_after_ms": None if record.retry_after_s is None else ms(record.retry_after_s),
        "deadline": _deadline(record, call),
        "predicted": _predicted(record),
        "actual": _actual(record),
        "attempts": [
            _attempt(attempt, _ended_at(attempt, record), now, record.arrived_at)
            for attempt in attempts
        ],
        "waiting": None if call is None else waiting(call, scheduler, now),
    }


def _deadline(record: Record, call: Call | None) -> dict[str, object] | None:
    settled = record.settled
    deadline_at = settled.deadline_at if settled else call.deadline_at if call else None
    if deadline_at is None:
        return None
    decision = record.attempts[-1].decision if record.attempts else None
    return {
        "in_ms": ms(deadline_at - record.arrived_at),
        "met": None if settled is None else settled.ended_at <= deadline_at,
        "budget_ms": _ms(decision.budget_s if decision else call.budget_s if call else None),
        "laxity_ms": _ms(decision.laxity_s if decision else None),
    }


def _predicted(record: Record) -> dict[str, object]:
    decision = record.attempts[-1].decision if record.attempts else None
    return {
        "output_tokens_mean": round(record.predicted_tokens, 1),
        "output_tokens_p50": None if decision is None else round(decision.output_tokens_p50),
        "output_tokens_p90": None if decision is None else round(decision.output_tokens_p90),
        "execution_ms": None if decision is None else ms(decision.predicted_s),
    }


def _actual(record: Record) -> dict[str, object] | None:
    settled = record.settled
    if settled is None:
        return None
    started_at, first_at = settled.started_at, settled.first_token_at
    return {
        "output_tokens": settled.output_tokens,
        "execution_ms": None if started_at is None else ms(settled.ended_at - started_at),
        "first_token_ms": None if first_at is None else ms(first_at - record.arrived_at),
        "total_ms": ms(settled.ended_at - record.arrived_at),
    }


def _ended_at(attempt: Attempt, record: Record) -> float | None:
    if attempt.failed_at is not None:
        return attempt.failed_at
    return record.settled.ended_at if record.settled else None


def _attempt(
    attempt: Attempt, ended_at: float | None, now: float, arrived_at: float
) -> dict[str, object]:
    decision = attempt.decision
    return {
        "number": attempt.number,
        "backend": decision.backend_id,
        "policy": decision.policy,
        "started_ms": ms(attempt.started_at - arrived_at),
        "queue_ms": ms(decision.queue_s),
        "predicted_ms": ms(decision.predicted_s),
        "ran_ms": ms((now if ended_at is None else ended_at) - attempt.started_at),
        "failure": attempt.failure.value if attempt.failure else None,
        "passed_over": attempt.passed,
        "candidates": candidates(decision, attempt.absent),
    }


def candidates(decision: Decision, absent: Mapping[BackendId, Absence]) -> list[dict[str, object]]:
    """Return every backend with its score and why it was taken or not; best score first."""
    scores = decision.scores
    chosen = scores.get(decision.backend_id)
    told = [
        {
            "backend": name,
            "score": _finite(score),
            **_verdict(decision, name, score, chosen, is_best=score == min(scores.values())),
        }
        for name, score in sorted(scores.items(), key=lambda item: (item[1], item[0]))
    ]
    told += [
        {"backend": name, "score": None, "verdict": reason.value, "why": WHY_ABSENT[reason]}
        for name, reason in sorted(absent.items())
    ]
    return told


def _verdict(
    decision: Decision, name: BackendId, score: float, chosen: float | None, *, is_best: bool
) -> dict[str, object]:
    if name == decision.backend_id:
        why = "the best score of all" if is_best else "the best score of those with room"
        return {"verdict": "chosen", "why": why}
    if name in decision.full:
        return {"verdict": "full", "why": FULL}
    if not isfinite(score):
        return {"verdict": "not_drawn", "why": "the lot did not fall on it"}
    if chosen is not None and score == chosen:
        return {"verdict": "tie", "why": "the same score; ties go to the first name"}
    return {"verdict": "worse", "why": "a worse score"}


def waiting(call: Call, scheduler: Scheduler, now: float) -> dict[str, object] | None:
    """Return what a call that has not started waits for, as things stand; None if it runs."""
    since_ms = ms(now - call.came_at)
    if call.state is CallState.HELD:
        return {"since_ms": since_ms, "for": _blocked_by(call), "candidates": []}
    if call.state is CallState.PAUSED:
        text = "a pause before it is tried on a backend that has failed it"
        return {"since_ms": since_ms, "for": text, "candidates": []}
    if call.state is not CallState.QUEUED:
        return None
    if call.load is not None:
        text = f"room at {call.load.id}, to which it is bound"
        return {"since_ms": since_ms, "for": text, "candidates": []}
    policy = scheduler.placement.policy
    return {
        "since_ms": since_ms,
        "for": "a backend with room, or a better one than those that have",
        "passed_over": call.passed,
        "candidates": _candidates_now(call, scheduler, policy),
    }


def _blocked_by(call: Call) -> str:
    run, ref = call.run, call.request.workflow
    spec = run.spec.stage(ref.stage) if run and run.spec and ref and ref.stage else None
    if run is None or spec is None:
        return "an earlier stage of its workflow"
    open_stages = [
        name
        for name in spec.depends_on
        if name not in run.stages or run.stages[name].state is not StageState.ANSWERED
    ]
    return f"earlier stages of its workflow: {', '.join(open_stages or spec.depends_on)}"


def _candidates_now(call: Call, scheduler: Scheduler, policy: Policy) -> list[dict[str, object]]:
    fleet = scheduler.fleet
    pool = fleet.pool(call.request)
    loads = fleet.open_for(call)
    scores = policy.dispatch.scores(call, loads, pool.turn) if loads else []
    best = min(scores, default=0.0)
    ranked = sorted(zip(scores, loads, strict=True), key=lambda pair: (pair[0], pair[1].id))
    told = [
        {
            "backend": load.id,
            "score": _finite(score),
            **_verdict_now(call, load, score, best, policy),
        }
        for score, load in ranked
    ]
    names = {load.id for load in loads}
    for name, load in sorted(fleet.loads.items()):
        if name not in names:
            reason = absence(load, call.request, has_failed_it=name in call.tried)
            told.append(
                {"backend": name, "score": None, "verdict": reason, "why": WHY_ABSENT[reason]}
            )
    return told


def _verdict_now(
    call: Call, load: BackendLoad, score: float, best: float, policy: Policy
) -> dict[str, object]:
    share = policy.budget_share
    has_room = share is None or load.needed_tokens(call) <= load.free_tokens(share)
    if not has_room:
        return {"verdict": "full", "why": FULL}
    limit = policy.hold if load.running else policy.hold_idle
    if best > 0 and score > limit * best and call.passed < policy.max_passed:
        why = f"it has room, but scores more than {limit:g} times as bad as the best: held for that"
        return {"verdict": "held", "why": why}
    return {"verdict": "next", "why": "it has room; others come first"}


def _finite(score: float) -> float | None:
    return round(score, 6) if isfinite(score) else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else ms(seconds)
