"""A JSON body's fields as TGI's router reads them, and its words for what is wrong (pure).

By the source of TGI 3.3.6-dev0 (router/src/{server,lib,validation}.rs): the web framework answers
in plain text to what it cannot read, the validation in JSON.
"""

from collections.abc import Mapping

import orjson

from gateway.emulator.asks import Refusal, Reply

Body = dict[str, object]
Types = Mapping[str, tuple[str, bool]]
"""Name -> what is expected, in serde's words, and whether null will do as well."""

SAMPLING: Types = {
    "frequency_penalty": ("f32", True),
    "repetition_penalty": ("f32", True),
    "seed": ("u64", True),
    "temperature": ("f32", True),
    "top_p": ("f32", True),
}
CHAT: Types = {
    **SAMPLING,
    "logit_bias": ("a sequence", True),
    "logprobs": ("a boolean", True),
    "max_tokens": ("u32", True),
    "messages": ("a sequence", False),
    "n": ("u32", True),
    "presence_penalty": ("f32", True),
    "response_format": ("a map", True),
    "stop": ("a sequence", True),
    "stream": ("a boolean", False),
    "stream_options": ("struct StreamOptions", False),
    "tools": ("a sequence", True),
    "top_logprobs": ("u32", True),
}
COMPLETION: Types = {
    **SAMPLING,
    "max_tokens": ("u32", True),
    "stop": ("a sequence", True),
    "stream": ("a boolean", False),
    "suffix": ("a string", True),
}
PARAMETERS: Types = {
    **SAMPLING,
    "best_of": ("usize", True),
    "decoder_input_details": ("a boolean", False),
    "details": ("a boolean", False),
    "do_sample": ("a boolean", False),
    "grammar": ("a map", True),
    "max_new_tokens": ("u32", True),
    "return_full_text": ("a boolean", True),
    "stop": ("a sequence", False),
    "top_k": ("i32", True),
    "top_n_tokens": ("u32", True),
    "truncate": ("usize", True),
    "typical_p": ("f32", True),
    "watermark": ("a boolean", False),
}

_CLASSES: Mapping[str, type | tuple[type, ...]] = {
    "a boolean": bool,
    "a map": dict,
    "a sequence": list,
    "a string": str,
    "f32": (int, float),
    "i32": int,
    "struct StreamOptions": dict,
    "u32": int,
    "u64": int,
    "usize": int,
}
_SERDE_NAMES = {bool: "boolean", dict: "map", list: "sequence", float: "floating point"}
_TEXT = "text/plain; charset=utf-8"


def plain_refusal(status: int, text: str) -> Refusal:
    """Return what the web framework says before the router has seen the request."""
    return Refusal(Reply(status, text.encode(), _TEXT))


def error(status: int, kind: str, text: str) -> Reply:
    """Return an error of the router's own."""
    return Reply(status, orjson.dumps({"error": text, "error_type": kind}))


def invalid(text: str) -> Refusal:
    """Return a validation error."""
    return Refusal(error(422, "validation", f"Input validation error: {text}"))


def read_fields(headers: Mapping[bytes, bytes], body: bytes) -> Body:
    """Return the body's fields; Refusal if it is no JSON object, or does not say that it is."""
    content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise plain_refusal(415, "Expected request with `Content-Type: application/json`")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as why:
        raise plain_refusal(
            400,
            f"Failed to parse the request body as JSON: {why.msg} at line {why.lineno} "
            f"column {why.colno}",
        ) from None
    if not isinstance(fields, dict):
        raise mistyped(f"invalid type: {_said(fields)}, expected struct")
    return fields


def mistyped(why: str) -> Refusal:
    """Return the refusal of a body that is JSON, but not what is expected."""
    return plain_refusal(
        422, f"Failed to deserialize the JSON body into the target type: {why} at line 1 column 1"
    )


def check_types(fields: Body, types: Types, where: str = "") -> None:
    """Refuse a field that is not what the router expects."""
    for name, (expected, is_optional) in types.items():
        if name not in fields or (fields[name] is None and is_optional):
            continue
        value = fields[name]
        wanted = _CLASSES[expected]
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise mistyped(f"{where}{name}: invalid type: {_said(value)}, expected {expected}")
        if expected.startswith("u") and isinstance(value, int) and value < 0:
            raise mistyped(f"{where}{name}: invalid value: integer `{value}`, expected {expected}")


def one_limit(fields: Body) -> None:
    """Bring `max_completion_tokens` under its other name; both at once are a duplicate."""
    if "max_completion_tokens" in fields:
        if "max_tokens" in fields:
            raise mistyped("duplicate field `max_tokens`")
        fields["max_tokens"] = fields.pop("max_completion_tokens")


def check_grammar(value: object, where: str) -> bool:
    """Refuse a grammar or response format that TGI does not know; say whether there is one."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind not in ("json", "json_object", "regex", "json_schema"):
        raise mistyped(
            f"{where}: unknown variant `{kind}`, expected one of `json`, `json_object`, `regex`, "
            "`json_schema`"
        )
    if "value" not in value:
        raise mistyped(f"{where}: missing field `value`")
    return bool(kind != "regex")


def check_sampling(fields: Body) -> None:
    """Refuse values out of range."""
    temperature = _number(fields, "temperature")
    if temperature is not None and temperature <= 0:
        raise invalid("`temperature` must be strictly positive")
    penalty = _number(fields, "repetition_penalty")
    if penalty is not None and penalty <= 0:
        raise invalid("`repetition_penalty` must be strictly positive")
    frequency = _number(fields, "frequency_penalty")
    if frequency is not None and not -2 <= frequency <= 2:
        raise invalid("`frequency_penalty` must be >= -2.0 and <= 2.0")
    top_p = _number(fields, "top_p")
    if top_p is not None and not 0 < top_p < 1:
        raise invalid("`top_p` must be > 0.0 and < 1.0")
    typical_p = _number(fields, "typical_p")
    if typical_p is not None and not 0 < typical_p < 1:
        raise invalid("`typical_p` must be > 0.0 and < 1.0")
    top_k = _number(fields, "top_k")
    if top_k is not None and top_k <= 0:
        raise invalid("`top_k` must be strictly positive")


def _number(fields: Body, name: str) -> float | None:
    value = fields.get(name)
    return value if isinstance(value, int | float) else None


def _said(value: object) -> str:
    """Name a value as serde does."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'string "{value}"'
    kind = _SERDE_NAMES.get(type(value), "integer")
    return kind if isinstance(value, dict | list) else f"{kind} `{orjson.dumps(value).decode()}`"
