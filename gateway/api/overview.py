"""Overview: the whole gateway at one instant, as the dashboard and `hexsage top` show it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from gateway.api import snapshots
from gateway.api.forecasts import workflows
from gateway.api.reasons import brief
from gateway.api.snapshots import ms
from gateway.core.call import Call, CallState
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.waits import WAITING
from gateway.predictor.predictor import LengthPredictor
from gateway.runtime.clock import Clock
from gateway.telemetry.digest import Digest, quantile
from gateway.telemetry.trends import SLOT_S, Slot, Trends
from gateway.telemetry.watch import Watch
from gateway.tuner.tuner import Tuner

MAX_QUEUES = 50
MAX_REQUESTS = 20
MAX_CALIBRATED = 6
RATE_S = 60.0
"""Over so long, about, are rates and percentiles of now."""
ATTAINMENT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What there is to look at."""

    scheduler: Scheduler
    clock: Clock
    vitals: Callable[[], snapshots.Vitals]
    watch: Watch
    predictor: LengthPredictor
    tuner: Tuner
    missing: Callable[[], str | None]
    """What keeps the gateway from serving; None: it is ready."""


def overview(sources: Sources) -> dict[str, object]:
    """Return everything that is shown live. No prompts, no answers."""
    now = sources.clock.now()
    scheduler, watch, trends = sources.scheduler, sources.watch, sources.watch.trends
    said = sources.vitals()
    tuner = sources.tuner
    return {
        **snapshots.state(scheduler, now),
        "uptime_ms": ms(now - watch.started_at),
        "missing": sources.missing(),
        "slot_s": SLOT_S,
        "backends": [
            snapshots.backend(load, said.get(name), scheduler.placement.policy)
            for name, load in sorted(scheduler.fleet.loads.items())
        ],
        "queues": queues(scheduler.calls.values(), now),
        "workflows": workflows(watch.timelines, scheduler, now),
        "rates": rates(trends, now),
        "trend": [point(slot, now) for slot in trends.slots(now, 2)],
        "prediction": prediction(sources.predictor),
        "tuner": {"searches": len(tuner.history), "is_searching": tuner.is_searching},
        "requests": [brief(one, now) for one in islice(watch.requests.latest(), MAX_REQUESTS)],
    }


def history(trends: Trends, now: float) -> dict[str, object]:
    """Return the past half hour, and which policies were in force."""
    return {
        "now": now,
        "slot_s": SLOT_S,
        "points": [point(slot, now) for slot in trends.slots(now)],
        "policies": [_since(at, policy) for at, policy in trends.policies],
    }


def point(slot: Slot, now: float) -> dict[str, object]:
    """Return one slot; rates are over the part of it that has passed."""
    at = slot.number * SLOT_S
    span_s = min(max(now - at, 1.0), SLOT_S)
    return {
        "at": at,
        "arrived_per_s": round(slot.arrived / span_s, 3),
        "completed_per_s": round(slot.completed / span_s, 3),
        "failed_per_s": round(slot.failed / span_s, 3),
        "output_tokens_per_s": round(slot.output_tokens / span_s, 1),
        "met": slot.met,
        "late": slot.late,
        "output_tokens": slot.output_tokens,
        "predicted_tokens": round(slot.predicted_tokens, 1),
        "queue_ms": _percentiles(slot.queue_s),
        "first_token_ms": _percentiles(slot.first_token_s),
        "call_ms": _percentiles(slot.call_s),
        "workflow_ms": _percentiles(slot.workflow_s),
    }


def rates(trends: Trends, now: float) -> dict[str, object]:
    """Return the rates and percentiles of about the last minute."""
    slots = trends.slots(now, ceil(RATE_S / SLOT_S) + 1)
    span_s = max(now - slots[0].number * SLOT_S, 1.0)
    longer = trends.slots(now, ceil(ATTAINMENT_S / SLOT_S))
    met, late = sum(slot.met for slot in longer), sum(slot.late for slot in longer)
    tokens = sum(slot.output_tokens for slot in longer)
    predicted = sum(slot.predicted_tokens for slot in longer)
    return {
        "span_s": round(span_s, 1),
        "arrived_per_s": round(sum(slot.arrived for slot in slots) / span_s, 3),
        "completed_per_s": round(sum(slot.completed for slot in slots) / span_s, 3),
        "failed_per_s": round(sum(slot.failed for slot in slots) / span_s, 3),
        "output_tokens_per_s": round(sum(slot.output_tokens for slot in slots) / span_s, 1),
        "call_ms_p50": _quantile(slots, 0.5),
        "call_ms_p95": _quantile(slots, 0.95),
        "queue_ms_p95": _ms(quantile((slot.queue_s for slot in slots), 0.95)),
        "met": met,
        "late": late,
        "attainment": round(met / (met + late), 4) if met + late else None,
        "predicted_over_real": round(predicted / tokens, 3) if tokens else None,
    }


def queues(calls: Iterable[Call], now: float) -> list[dict[str, object]]:
    """Return what waits, by model and tenant, the longest queue first."""
    rows: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        if call.state in WAITING:
            rows.setdefault((call.request.model, call.request.tenant), []).append(call)
    longest = sorted(rows.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        {
            "model": model,
            "tenant": tenant,
            "waiting": len(waiting),
            "held": sum(call.state is CallState.HELD for call in waiting),
            "predicted_ms": ms(sum(call.reference_s for call in waiting)),
            "oldest_ms": ms(now - min(call.came_at for call in waiting)),
        }
        for (model, tenant), waiting in longest[:MAX_QUEUES]
    ]


def prediction(predictor: LengthPredictor) -> dict[str, object]:
    """Return how well answer lengths are predicted, by model and for the busiest stages."""
    told = predictor.snapshot()
    busiest = sorted(told.calibration.items(), key=lambda item: -(item[1].get("samples") or 0))
    return {
        "answered": told.answered,
        "by_level": told.by_level,
        "answer_ms_p99": ms(told.answer_s_p99),
        "calibration": [
            {
                "of": name,
                "samples": numbers.get("samples"),
                "cover_50": numbers.get("cover_50"),
                "cover_80": numbers.get("cover_80"),
                "cover_95": numbers.get("cover_95"),
                "skill": numbers.get("skill_over_stage"),
                "is_bypassed": bool(numbers.get("is_bypassed")),
            }
            for name, numbers in busiest[:MAX_CALIBRATED]
        ],
    }


def _since(at: float, policy: Policy) -> dict[str, object]:
    return {"at": at, "name": policy.name, "alpha": snapshots.alpha_of(policy)}


def _percentiles(digest: Digest) -> list[float | None]:
    """Return P50, P95 and P99."""
    return [_ms(digest.quantile(share)) for share in (0.5, 0.95, 0.99)]


def _quantile(slots: Sequence[Slot], share: float) -> float | None:
    return _ms(quantile((slot.call_s for slot in slots), share))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
