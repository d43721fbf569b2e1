"""/healthz, /readyz, /metrics."""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from gateway.api.responses import Json
from gateway.telemetry.prometheus import CONTENT_TYPE


def health_router(is_ready: Callable[[], str | None]) -> APIRouter:
    """Build the routes. `is_ready` says what is missing, or None."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Json:
        return Json({"status": "ok"})

    @router.get("/readyz")
    async def readyz() -> Json:
        missing = is_ready()
        if missing is None:
            return Json({"status": "ready"})
        return Json({"status": "not ready", "reason": missing}, status_code=503)

    return router


def metrics_router(render_metrics: Callable[[], bytes]) -> APIRouter:
    """Build the route."""
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(render_metrics(), media_type=CONTENT_TYPE)

    return router
