"""A JSON body's fields, and vLLM's words for what is wrong with one (pure).

The texts follow recorded answers of vLLM 0.32.0, which are pydantic's with a frame around them.
"""

import json
from collections.abc import Mapping

import orjson

from gateway.emulator.asks import Refusal, Reply

Body = dict[str, object]


def refusal(status: int, message: str, kind: str, param: str | None = None) -> Refusal:
    """Return an error in vLLM's shape: its `code` is the status."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return Refusal(Reply(status, orjson.dumps({"error": error})))


def read_fields(headers: Mapping[bytes, bytes], body: bytes) -> Body:
    """Return the body's fields; Refusal if it is no JSON object, or does not say that it is."""
    content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise refusal(
            400,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            "Bad Request",
        )
    if not body:
        raise invalid("missing", "", "Field required", "None")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _malformed(body) from None
    if not isinstance(fields, dict):
        kind = f"<list of {len(fields)} items>" if isinstance(fields, list) else repr(fields)
        raise invalid(
            "model_attributes_type",
            "",
            "Input should be a valid dictionary or object to extract fields from",
            kind,
        )
    return fields


def _malformed(body: bytes) -> Refusal:
    """Say where it breaks in the words of the standard library, as vLLM does."""
    position, why = 0, "Expecting value"
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        position, why = error.pos, error.msg
    except UnicodeDecodeError as error:
        position, why = error.start, "Invalid UTF-8"
    except RecursionError:
        why = "Too deeply nested"
    return refusal(
        400,
        f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{position}', 'msg': 'JSON"
        f" decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': '{why}'}}}}",
        "Bad Request",
        f"body.{position}",
    )


def invalid(kind: str, name: str, message: str, value: object) -> Refusal:
    """Return a validation error of one field (the whole body, if it has no name)."""
    where = f"body.{name}" if name else "body"
    return refusal(
        400,
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', "
        f"'input': '{value}'}}",
        "Bad Request",
        where,
    )


def optional_float(fields: Body, name: str) -> float | None:
    """Return a number, or one in a string; None if absent."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, int | float | str):
            return float(value)
    except ValueError:
        pass
    reason = "Input should be a valid number, unable to parse string as a number"
    raise invalid("float_parsing", name, reason, value)


def optional_int(fields: Body, name: str) -> int | None:
    """Return a whole number, or one in a string; None if absent."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, int | str) or (isinstance(value, float) and value.is_integer()):
            return int(value)
    except ValueError:
        pass
    reason = "Input should be a valid integer, unable to parse string as an integer"
    raise invalid("int_parsing", name, reason, value)


def read_object(fields: Body, name: str) -> Body:
    """Return an object; an empty one if absent."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("dict_type", name, "Input should be a valid dictionary", value)
    return value
