"""describe: puts the raw handlers' paths into the OpenAPI document of the FastAPI side."""

from collections.abc import Iterable
from http import HTTPStatus

from fastapi import FastAPI

from gateway.api.endpoints import Endpoint
from gateway.backends.base import Shape

Schema = dict[str, object]

_ERROR: Schema = {
    "description": "An error in OpenAI's shape.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
                    }
                },
            }
        }
    },
}
_MESSAGES: Schema = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_KNOWN: dict[str, Schema] = {
    "messages": _MESSAGES,
    "model": {"type": "string", "minLength": 1, "pattern": r"\S"},
    "priority": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "prompt": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "stream": {"type": "boolean"},
}


def describe(app: FastAPI, endpoints: Iterable[Endpoint]) -> None:
    """Let `app`'s document name these endpoints too."""
    extra = {endpoint.path: _path_item(endpoint) for endpoint in endpoints}
    own = app.openapi

    def document() -> dict[str, object]:
        if app.openapi_schema is None:
            schema = own()
            schema["paths"] = {**extra, **schema["paths"]}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation does it


def _path_item(endpoint: Endpoint) -> Schema:
    return {method.lower(): _operation(endpoint, method) for method in endpoint.methods}


def _operation(endpoint: Endpoint, method: str) -> Schema:
    content: Schema = {"application/json": {}}
    if endpoint.shape is not Shape.JSON:
        content |= {"text/event-stream": {}}
    operation: Schema = {
        "summary": f"{endpoint.path}, as the model's backend offers it",
        "tags": ["engines"],
        "operationId": f"{method.lower()}_{endpoint.path.strip('/').replace('/', '_')}",
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase, "content": content},
            "default": _ERROR,
        },
    }
    if "{id}" in endpoint.path:
        operation["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    elif method == "POST" and endpoint.shape is not Shape.ANY:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(endpoint)}},
        }
    elif endpoint.is_form:
        operation["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": _FORM}},
        }
    return operation


_FORM: Schema = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "model": {"type": "string"},
        "file": {"type": "string", "format": "binary"},
    },
}


def _body(endpoint: Endpoint) -> Schema:
    names = {"stream", "priority", "model", *endpoint.needs}
    schema: Schema = {
        "type": "object",
        "properties": {name: _KNOWN.get(name, {}) for name in sorted(names)},
    }
    required = ["model"] if endpoint.needs_model else []
    if len(endpoint.needs) == 1:
        required.append(endpoint.needs[0])
    else:
        schema["anyOf"] = [{"required": [name]} for name in endpoint.needs]
    if required:
        schema["required"] = required
    return schema
