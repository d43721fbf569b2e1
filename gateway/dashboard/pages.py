"""/dashboard: the page and its parts, read once and served from memory. It holds no data."""

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gateway.api.errors import ApiError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class Part(NamedTuple):
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


def read_parts() -> dict[str, Part]:
    """Return the page's files by name."""
    parts = {}
    for entry in files(__package__).joinpath("static").iterdir():
        media_type = TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            parts[entry.name] = Part(body, media_type, f'"{sha256(body).hexdigest()[:24]}"')
    return parts


def dashboard_router() -> APIRouter:
    """Build the routes. The page refers to its parts, and to /admin, relative to itself."""
    router = APIRouter(prefix="/dashboard", include_in_schema=False)
    parts = read_parts()

    @router.get("")
    async def page(request: Request) -> Response:
        return _answer(parts["index.html"], request)

    @router.get("/")
    async def page_with_slash() -> Response:
        return RedirectResponse("../dashboard")

    @router.get("/{name}")
    async def part(name: str, request: Request) -> Response:
        if name not in parts:
            raise ApiError(status=404, message="The dashboard has no such file.", code="not_found")
        return _answer(parts[name], request)

    return router


def _answer(part: Part, request: Request) -> Response:
    headers = {**HEADERS, "etag": part.etag}
    if request.headers.get("if-none-match") == part.etag:
        return Response(status_code=304, headers=headers)
    return Response(part.body, media_type=part.media_type, headers=headers)
