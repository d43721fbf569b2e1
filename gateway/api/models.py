"""/v1/models: what the fleet serves, and its aliases."""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request

from gateway.api.errors import ApiError
from gateway.api.responses import Json
from gateway.api.tenants import TenantResolver

Catalog = Callable[[], Mapping[str, int | None]]
"""Every model that some backend serves, with the longest context that all of them take."""


def models_router(
    catalog: Catalog, aliases: Mapping[str, str], created_at: int, tenants: TenantResolver
) -> APIRouter:
    """Build the routes. A model stays listed while its backends are down."""
    router = APIRouter(prefix="/v1/models")

    def cards(request: Request) -> dict[str, dict[str, object]]:
        caller = tenants.resolve(request.scope["headers"])
        served = dict(catalog())
        named = {name: served[target] for name, target in aliases.items() if target in served}
        return {
            name: {
                "id": name,
                "object": "model",
                "created": created_at,
                "owned_by": "hexsage",
                "max_model_len": longest,
            }
            for name, longest in sorted({**served, **named}.items())
            if caller.may_use(name)
        }

    @router.get("")
    @router.get("/")
    async def list_models(request: Request) -> Json:
        return Json({"object": "list", "data": list(cards(request).values())})

    @router.get("/{model:path}")
    async def get_model(model: str, request: Request) -> Json:
        card = cards(request).get(model)
        if card is None:
            raise ApiError(
                status=404,
                message=f"The model `{model[:100]}` does not exist.",
                code="model_not_found",
                param="model",
            )
        return Json(card)

    return router
