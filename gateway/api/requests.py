"""/admin/requests: the latest requests, and why each went where it went."""

from itertools import islice

from fastapi import APIRouter, Query

from gateway.api import reasons
from gateway.api.errors import ApiError
from gateway.api.responses import Json
from gateway.core.scheduler import Scheduler
from gateway.runtime.clock import Clock
from gateway.telemetry.requests import MAX_ENDED, Record, Requests

OPEN = "open"
"""What `outcome` is asked for to see requests that have not ended."""


def requests_router(requests: Requests, scheduler: Scheduler, clock: Clock) -> APIRouter:
    """Build the routes; who may use them is for the router that includes this one to say."""
    router = APIRouter()

    @router.get("/requests")
    async def list_requests(
        outcome: str | None = None,
        model: str | None = None,
        workflow: str | None = None,
        limit: int = Query(default=50, ge=1, le=MAX_ENDED),
    ) -> Json:
        now = clock.now()
        wanted = (record for record in requests.latest() if _fits(record, outcome, model, workflow))
        return Json({"requests": [reasons.brief(record, now) for record in islice(wanted, limit)]})

    @router.get("/requests/{request_id:path}")
    async def get_request(request_id: str) -> Json:
        record = requests.get(request_id)
        if record is None:
            raise ApiError(
                status=404,
                message=f"Nothing is remembered of a request `{request_id[:128]}`: only the last "
                f"{MAX_ENDED} that ended are.",
                code="not_found",
            )
        return Json(reasons.whole(record, scheduler, clock.now()))

    return router


def _fits(record: Record, outcome: str | None, model: str | None, workflow: str | None) -> bool:
    settled = record.settled
    if outcome is not None and outcome != (settled.outcome.value if settled else OPEN):
        return False
    if model is not None and record.model != model:
        return False
    return workflow is None or workflow in (record.workflow_id, record.workflow_name)
