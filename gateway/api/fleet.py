"""/admin/backends and /admin/reload: backends are added, drained, trusted again, removed."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import APIRouter, Body
from starlette.responses import Response

from gateway.api.errors import ApiError, bad_request
from gateway.api.responses import Json


class BadSettings(Exception):
    """What was asked for makes no sense; one line a mistake."""


class FleetControl(Protocol):
    """What operators can do to the fleet."""

    def names(self) -> frozenset[str]:
        """Every backend."""

    def add(self, wish: dict[str, object]) -> None:
        """Add a backend; BadSettings if the entry is none."""

    def remove(self, name: str) -> None:
        """Take a backend out; its running calls are finished."""

    def drain(self, name: str, *, drains: bool) -> None:
        """Give a backend nothing new, or let it have calls again."""

    def trust(self, name: str) -> None:
        """Forget what calls have told against a backend."""

    async def reload(self) -> Sequence[str]:
        """Read the configuration anew; return the settings that need a restart, or BadSettings."""


def fleet_router(fleet: FleetControl, show: Callable[[str], dict[str, object]]) -> APIRouter:
    """Build the routes. They lie under /admin, behind its guard."""
    router = APIRouter()

    def known(name: str) -> str:
        if name not in fleet.names():
            raise ApiError(
                status=HTTPStatus.NOT_FOUND,
                message=f"There is no backend `{name[:100]}`.",
                code="backend_not_found",
            )
        return name

    @router.post("/backends")
    async def add(wish: dict[str, object] = Body()) -> Json:  # noqa: B008 - as FastAPI has it
        if wish.get("name") in fleet.names():
            raise ApiError(
                status=HTTPStatus.CONFLICT,
                message="A backend of this name is here already.",
                code="duplicate_name",
                param="name",
            )
        try:
            fleet.add(wish)
        except BadSettings as error:
            raise bad_request(str(error), code="invalid_backend") from None
        return Json({"name": wish["name"]}, status_code=HTTPStatus.CREATED)

    @router.delete("/backends/{name}")
    async def remove(name: str) -> Response:
        fleet.remove(known(name))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @router.post("/backends/{name}/drain")
    async def drain(name: str) -> Json:
        fleet.drain(known(name), drains=True)
        return Json(show(name))

    @router.post("/backends/{name}/undrain")
    async def undrain(name: str) -> Json:
        fleet.drain(known(name), drains=False)
        return Json(show(name))

    @router.post("/backends/{name}/enable")
    async def enable(name: str) -> Json:
        fleet.drain(known(name), drains=False)
        fleet.trust(name)
        return Json(show(name))

    return router


def reload_router(fleet: FleetControl) -> APIRouter:
    """Build the route."""
    router = APIRouter()

    @router.post("/reload")
    async def reload() -> Json:
        try:
            return Json({"restart_needed_for": await fleet.reload()})
        except BadSettings as error:
            raise bad_request(str(error), code="invalid_configuration") from None

    return router
