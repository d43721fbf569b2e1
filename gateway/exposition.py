"""What the gateway tells Prometheus, gathered from its parts."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from gateway import __version__
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendState
from gateway.predictor.predictor import LengthPredictor
from gateway.telemetry.gauges import (
    BackendGauges,
    Gauges,
    PredictorGauges,
    TunerGauges,
    WorkerGauges,
)
from gateway.tuner.tuner import Tuner

SCORES = {
    "cover_50": "covered_50",
    "cover_80": "covered_80",
    "cover_95": "covered_95",
    "skill_over_stage": "skill_over_stage",
}
"""What is told of a model's calibration, and under which label."""


def gauges(
    scheduler: Scheduler,
    predictor: LengthPredictor,
    tuner: Tuner,
    *,
    tenants: Collection[str],
    limited: Mapping[tuple[str, str], int],
    alpha: float | None,
    reloads_refused: int,
    workers: tuple[WorkerGauges, ...],
) -> Gauges:
    """Return the gateway at this instant; `tenants` are those that have a key."""
    policy = scheduler.placement.policy
    by_tenant = scheduler.admission.tenants
    return Gauges(
        version=__version__,
        queued=scheduler.waiting,
        in_flight=scheduler.running,
        open_workflows=scheduler.workflows.count,
        tasks=len(asyncio.all_tasks()),
        reloads_refused=reloads_refused,
        tenants={name: by_tenant[name].requests for name in tenants if name in by_tenant},
        limited=limited,
        backends=tuple(
            _backend(name, load, policy) for name, load in sorted(scheduler.fleet.loads.items())
        ),
        workers=workers,
        predictor=_predictor(predictor, scheduler),
        tuner=TunerGauges(
            policy=policy.name,
            alpha=alpha,
            searches=Counter("applied" if one.applied else "left" for one in tuner.history),
        ),
    )


def _backend(name: str, load: BackendLoad, policy: Policy) -> BackendGauges:
    share = 1.0 if policy.budget_share is None else policy.budget_share
    return BackendGauges(
        name=name,
        is_up=load.state is BackendState.UP,
        breaker=load.breaker.state.value,
        in_flight=load.in_flight,
        queued=len(load.bound),
        backlog_s=load.backlog_s,
        kv_reserved_tokens=load.reserved_tokens,
        kv_budget_tokens=load.budget_tokens(share),
        prefill_factor=load.calibration.prefill.applied,
        decode_factor=load.calibration.decode.applied,
    )


def _predictor(predictor: LengthPredictor, scheduler: Scheduler) -> PredictorGauges:
    now = predictor.snapshot()
    models = scheduler.fleet.models()
    return PredictorGauges(
        by_level=now.by_level,
        missed={"late": now.late, "refused": now.refused},
        spared={"repeated": now.repeated, "narrow": now.narrow},
        memory_bytes=now.memory_bytes,
        answer_s_p50=now.answer_s_p50,
        answer_s_p99=now.answer_s_p99,
        samples={m: n for m, n in now.history_samples.items() if m in models},
        scores={
            model: {
                label: value
                for name, label in SCORES.items()
                if (value := now.calibration[model].get(name)) is not None
            }
            for model in models
            if model in now.calibration
        },
    )
