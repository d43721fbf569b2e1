"""Json: an answer of the FastAPI side, and how errors look there."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.api import errors
from gateway.api.codes import OwnCode
from gateway.api.errors import ApiError, bad_request
from gateway.mistakes import plainly
from gateway.telemetry.decisions import encode

_CODES: Mapping[int, OwnCode] = {404: "not_found", 405: "method_not_allowed"}

_ROOT = (
    "There is nothing at the root: the API is at /v1 and the dashboard at /dashboard, "
    "on admin.port if that is set."
)
_NO_OBJECT = frozenset({"dict_type", "model_type", "model_attributes_type"})
_WANTS_JSON = "The body must be a JSON object, sent with the header content-type: application/json."


class Json(Response):
    """JSON of what the core's dataclasses hold."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return encode(content)


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of the FastAPI side OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        return as_response(error)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "bad_request")
        headers = tuple(
            (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
        )
        message = f"{error.detail}." if request.url.path != "/" else _ROOT
        return as_response(
            ApiError(status=error.status_code, message=message, code=code, headers=headers)
        )

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        if not where and first["type"] in _NO_OBJECT:
            return as_response(bad_request(_WANTS_JSON))
        told = f"{where or 'body'}: {plainly(first)}."
        return as_response(bad_request(told, param=where or None))

    @app.exception_handler(Exception)
    async def on_bug(_: Request, __: Exception) -> Response:
        return as_response(errors.INTERNAL)


def as_response(error: ApiError) -> Response:
    """Return an error as a response."""
    response = Response(error.body(), error.status)
    response.raw_headers.extend(error.response_headers())
    return response
