"""/admin/tuner: what the tuner has tried, what it found, what it changed."""

from dataclasses import asdict

from fastapi import APIRouter

from gateway.api.errors import ApiError
from gateway.api.responses import Json
from gateway.tuner.search import Finding
from gateway.tuner.tuner import Tuner, Tuning


def tuner_router(tuner: Tuner) -> APIRouter:
    """Build the routes; who may use them is for the router that includes this one to say."""
    router = APIRouter()

    @router.get("/tuner")
    async def get_tuner() -> Json:
        return Json(
            {
                "interval_s": tuner.interval_s,
                "objective": tuner.objective.value,
                "is_searching": tuner.is_searching,
                "history": [told_of(tuning) for tuning in tuner.history],
            }
        )

    @router.post("/tuner")
    async def tune_now() -> Json:
        if tuner.is_searching:
            raise ApiError(status=409, message="A search is under way.", code="already_tuning")
        return Json(told_of(await tuner.tune_once()))

    return router


def told_of(tuning: Tuning) -> dict[str, object]:
    """Return one search, as it is told."""
    return {
        "at": tuning.at,
        "took_s": tuning.took_s,
        "recorded": tuning.workflows,
        "outcome": tuning.outcome,
        "applied": tuning.applied,
        "finding": None if tuning.finding is None else _finding(tuning.finding),
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "policy": finding.policy,
        "objective": finding.objective.value,
        "best": finding.label,
        "gain": None if finding.gain is None else asdict(finding.gain),
        "curve": [asdict(point) for point in finding.curve],
    }
