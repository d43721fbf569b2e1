"""/admin: what the scheduler sees and by which policy it decides, for those who hold the key."""

from collections.abc import Callable
from dataclasses import asdict
from hmac import compare_digest

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from gateway.api import snapshots
from gateway.api.errors import ApiError, bad_request
from gateway.api.fleet import FleetControl, fleet_router, reload_router
from gateway.api.live import live_router
from gateway.api.overview import Sources
from gateway.api.requests import requests_router
from gateway.api.responses import Json
from gateway.api.tuner import tuner_router
from gateway.core.events import PolicyChanged
from gateway.core.policies.base import Policy
from gateway.runtime.driver import Driver

PolicyMaker = Callable[[dict[str, object]], Policy]
"""Builds a policy from the configured one with some settings changed; ValueError says what is
wrong with them."""


OWN_PAGES = frozenset({"same-origin", "none"})
"""What browsers say of requests that the dashboard or a person makes. Without a key, any page that
an operator happens to visit could otherwise drain backends."""


class PolicyWish(BaseModel):
    """What to change of the policy. Knobs that are not named stay as they are configured."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    alpha: float | None = None
    score: str | None = None
    beta: float | None = None
    budget_share: float | None = None
    hold: float | None = None
    hold_idle: float | None = None
    skip: int | None = None
    kappa: float | None = None


def admin_router(
    driver: Driver,
    sources: Sources,
    *,
    make_policy: PolicyMaker,
    admin_key: str | None,
    open_without_key: bool,
    fleet: FleetControl,
    is_over: Callable[[], bool],
) -> APIRouter:
    """Build the routes."""

    scheduler, clock, vitals = sources.scheduler, sources.clock, sources.vitals
    guard = _guard(admin_key, open_without_key=open_without_key)
    router = APIRouter(prefix="/admin", dependencies=[Depends(guard)])

    @router.get("/state")
    async def get_state(decisions: int = 50) -> Json:
        return Json(
            {
                **snapshots.state(scheduler, clock.now()),
                "backends": backends(),
                "recent": sources.watch.recent.latest(min(max(decisions, 0), 1000)),
            }
        )

    @router.get("/backends")
    async def get_backends() -> Json:
        return Json({"backends": backends()})

    @router.get("/policy")
    async def get_policy() -> Json:
        return Json(snapshots.policy(scheduler.placement.policy))

    @router.put("/policy")
    async def put_policy(wish: PolicyWish) -> Json:
        try:
            policy = make_policy(wish.model_dump(exclude_none=True))
        except ValueError as error:
            raise bad_request(str(error), code="invalid_policy") from None
        driver.feed(PolicyChanged(policy))
        return Json(snapshots.policy(policy))

    @router.get("/predictor")
    async def get_predictor() -> Json:
        return Json(asdict(sources.predictor.snapshot()))

    def backends() -> list[dict[str, object]]:
        said, policy = vitals(), scheduler.placement.policy
        loads = sorted(scheduler.fleet.loads.items())
        return [snapshots.backend(load, said.get(name), policy) for name, load in loads]

    def show(name: str) -> dict[str, object]:
        return next((told for told in backends() if told["name"] == name), {"name": name})

    router.include_router(fleet_router(fleet, show))
    router.include_router(reload_router(fleet))
    router.include_router(tuner_router(sources.tuner))
    router.include_router(requests_router(sources.watch.requests, scheduler, clock))
    router.include_router(live_router(sources, is_over))
    return router


def _guard(admin_key: str | None, *, open_without_key: bool) -> Callable[[Request], None]:
    def guard(request: Request) -> None:
        if request.headers.get("sec-fetch-site", "none") not in OWN_PAGES:
            raise ApiError(
                status=403, message="Other sites' pages may not use /admin.", code="admin_closed"
            )
        if admin_key is None:
            if open_without_key:
                return
            raise ApiError(
                status=403, message="Admin is closed: no admin key is set.", code="admin_closed"
            )
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not compare_digest(given.encode(), admin_key.encode()):
            raise ApiError(
                status=401,
                message="The admin key is wrong or missing.",
                type="authentication_error",
                code="invalid_api_key",
            )

    return guard
