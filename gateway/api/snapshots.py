"""The scheduler's state as people read it: plain JSON values, times in milliseconds (pure)."""

from collections.abc import Mapping

from gateway.backends.engine_metrics import EngineMetrics
from gateway.core.call import Call
from gateway.core.corrections import Correction
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId
from gateway.core.workflow import WorkflowRun

Vitals = Mapping[BackendId, EngineMetrics]


def state(scheduler: Scheduler, now: float) -> dict[str, object]:
    """Return everything that is not one request's."""
    waiting = scheduler.admission.total
    return {
        "now": now,
        "queued": scheduler.waiting,
        "queued_bytes": waiting.body_bytes,
        "queued_predicted_ms": ms(waiting.predicted_s),
        "in_flight": scheduler.running,
        "open_workflows": scheduler.workflows.count,
        "policy": policy(scheduler.placement.policy),
        "models": scheduler.fleet.models(),
    }


def policy(active: Policy) -> dict[str, object]:
    """Return the policy's name and the knobs that it reads."""
    return {
        "name": active.name,
        "alpha": alpha_of(active),
        "binds": active.binds.value,
        "budget_share": active.budget_share,
    }


def alpha_of(active: Policy) -> float | None:
    """Return the policy's alpha; None if it has none."""
    alpha = getattr(active.dispatch, "alpha", None)
    return alpha if isinstance(alpha, float) else None


def backend(load: BackendLoad, metrics: EngineMetrics | None, active: Policy) -> dict[str, object]:
    """Return one backend: what it is, what the gateway gave it, what it says of itself."""
    profile = load.backend.profile
    share = active.budget_share
    slots, cap = profile.max_num_seqs, load.backend.max_in_flight
    said = metrics or EngineMetrics()
    return {
        "name": load.id,
        "state": load.state.value,
        "breaker": load.breaker.state.value,
        "ramp": load.breaker.ramp,
        "models": sorted(load.backend.models),
        "gpu": profile.name,
        "in_flight": load.in_flight,
        "slots": slots if cap is None else min(slots, cap),
        "queued": len(load.bound),
        "backlog_ms": ms(load.backlog_s),
        "kv_reserved_tokens": load.reserved_tokens,
        "kv_tokens": profile.kv_tokens,
        "kv_budget_tokens": None if share is None else round(load.budget_tokens(share)),
        "budget_share": round(load.budget.share, 3),
        "learned": {
            "prefill": _correction(load.calibration.prefill),
            "decode": _correction(load.calibration.decode),
        },
        "max_in_flight": load.backend.max_in_flight,
        "engine_running": said.running,
        "engine_waiting": said.waiting,
        "engine_kv_share": said.kv_share,
    }


def _correction(correction: Correction) -> dict[str, object]:
    """Return by how much a part of the profile is off: 2 means twice as slow as configured."""
    return {
        "factor": round(correction.applied, 3),
        "learned": round(correction.learned, 3),
        "samples": correction.samples,
    }


def workflow(run: WorkflowRun, now: float, expected_total_s: float | None) -> dict[str, object]:
    """Return one open workflow: its stages, its calls, its time."""
    deadline_at = run.deadline_at
    return {
        "id": run.key.id,
        "object": "workflow",
        "name": run.name,
        "state": run.state.value,
        "strict": run.strict,
        "elapsed_ms": ms(now - run.opened_at),
        "deadline_ms": None if deadline_at is None else ms(deadline_at - run.opened_at),
        "left_ms": None if deadline_at is None else ms(deadline_at - now),
        "predicted_total_ms": None if expected_total_s is None else ms(expected_total_s),
        "total_calls": run.total_calls,
        "stages": [
            {
                "name": name,
                "state": stage.state.value,
                "open_calls": stage.open_calls,
                "answers": stage.answers,
                "visits": stage.visits,
            }
            for name, stage in run.stages.items()
        ],
        "calls": [_call(call, now) for call in run.calls.values()],
    }


def ms(seconds: float) -> float:
    """Return milliseconds, to the microsecond."""
    return round(seconds * 1000, 3)


def _call(call: Call, now: float) -> dict[str, object]:
    ref = call.request.workflow
    return {
        "request_id": call.id,
        "stage": ref.stage if ref else None,
        "state": call.state.value,
        "backend": call.load.id if call.load else None,
        "age_ms": ms(now - call.came_at),
        "budget_ms": None if call.budget_s is None else ms(call.budget_s),
        "predicted_ms": ms(call.reference_s),
    }
