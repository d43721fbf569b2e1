"""What a client asks for: the body of one completion call, read and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import orjson

from gateway.api.endpoints import Endpoint
from gateway.api.errors import ApiError, bad_request
from gateway.api.said import Said, read_said
from gateway.backends.assembly import form_of
from gateway.backends.base import Shape
from gateway.core.types import TenantId

NOT_TO_ENGINE = ("kv_transfer_params", "request_id", "priority")
"""Body fields that engines would obey and clients may not use; `priority` upstream is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call as its client meant it."""

    model: str
    """As backends serve it."""
    public_model: str
    """As the client calls it."""
    body: Mapping[str, object]
    """Empty if it is no JSON object."""
    upstream_body: bytes
    """The body as it came, or encoded anew where something had to change."""
    said: Said
    stream: bool = False
    hide_usage: bool = False
    form: str = ""
    """See Call: progress of the answer may be observed although its client does not stream.

    It is not promised to the scheduler: silence of such a call is no sign that its engine hangs.
    """
    max_tokens: int | None = None
    priority: int = 0


def check_depth(raw: bytes, limit: int) -> None:
    """Raise ApiError for JSON that is nested deeper than the limit.

    Fast for any body: nothing here takes a step of Python for each byte or bracket.
    """
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(unescaped, np.uint8)
    is_inside = np.cumsum(codes == ord('"'), dtype=np.uint8) & 1  # an odd number of quotes before
    folded = codes | 0x20  # "[" becomes "{", and "]" becomes "}"
    steps = (folded == ord("{")).astype(np.int8) - (folded == ord("}")).astype(np.int8)
    steps[is_inside == 1] = 0
    if steps.cumsum(dtype=np.int32).max(initial=0) > limit:
        message = f"The body is nested deeper than {limit} levels."
        raise bad_request(message, code="invalid_json")


def parse_body(raw: bytes) -> dict[str, object]:
    """Return the JSON object; ApiError says what is wrong with anything else.

    Duplicate keys: the last one counts, as in every engine. NaN, infinities, lone surrogates,
    UTF-16, a byte order mark and absurd nesting are refused.
    """
    if not raw.strip():
        raise bad_request("The body is empty; it must be a JSON object.", code="invalid_json")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        message = f"The body is not valid JSON: {error.msg} ({where})."
        raise bad_request(message, code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return body


def read_call(
    raw: bytes,
    headers: Mapping[bytes, bytes],
    tenant: TenantId,
    target_of: Callable[[str | None], tuple[str, str]],
    endpoint: Endpoint,
) -> Asked:
    """Return what a call asks for; ApiError if it cannot be understood.

    `target_of` resolves a model's public name, or that none was given, to the public name and
    that of the model which backends serve.
    """
    refuse_encoding(headers)
    body = parse_body(raw)
    public_model, model = target_of(_model(body, is_needed=endpoint.needs_model))
    _check_needs(body, endpoint)
    stream = _boolean(body, "stream")
    said, metadata = read_said(headers, body, tenant)
    renamed = model if "model" in body and body["model"] != model else None
    changes = _changes(body, renamed, metadata)
    hides_usage = endpoint.shape is Shape.CHOICES and not _wants_usage(body) and stream
    return Asked(
        model=model,
        public_model=public_model,
        body=body,
        upstream_body=_upstream_body(raw, body, changes, add_usage=hides_usage),
        said=said,
        stream=stream or endpoint.streams,
        hide_usage=hides_usage,
        form=form_of(endpoint.path, body) if endpoint.is_observed and not stream else "",
        max_tokens=_max_tokens(body),
        priority=_priority(body),
    )


def refuse_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a compressed body."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError(
            status=415, message="Compressed bodies are not taken.", code="unsupported_encoding"
        )


def _model(body: Mapping[str, object], *, is_needed: bool) -> str | None:
    model = body.get("model")
    if model is None:
        if not is_needed:
            return None
        raise missing_model()
    if not isinstance(model, str) or not model.strip():
        raise bad_request("`model` must be a non-empty string.", param="model", code="wrong_type")
    return model


def missing_model() -> ApiError:
    """Return the refusal of a call that does not say its model."""
    return bad_request("`model` is missing.", param="model", code="missing_field")


def _check_needs(body: Mapping[str, object], endpoint: Endpoint) -> None:
    if not endpoint.needs:
        return
    given = next((name for name in endpoint.needs if body.get(name) is not None), None)
    first = endpoint.needs[0]
    if given is None:
        raise bad_request(f"`{first}` is missing.", param=first, code="missing_field")
    value = body[given]
    if given == "messages" and not (isinstance(value, list) and value):
        raise bad_request(
            "`messages` must be a non-empty list.", param="messages", code="wrong_type"
        )
    if given == "prompt" and not isinstance(value, str | list):
        raise bad_request("`prompt` must be a string or a list.", param="prompt", code="wrong_type")


def _boolean(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false.", param=name, code="wrong_type")
    return value


def _priority(body: Mapping[str, object]) -> int:
    value = body.get("priority")
    if value is None:
        return 0
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise bad_request(
            "`priority` must be a 32-bit integer.", param="priority", code="wrong_type"
        )
    return value


def _max_tokens(body: Mapping[str, object]) -> int | None:
    """Return the cap on the answer; what is no positive integer is the engine's to judge."""
    caps = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    return next((cap for cap in caps if type(cap) is int and cap > 0), None)


def _wants_usage(body: Mapping[str, object]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request(
            "`stream_options` must be an object.", param="stream_options", code="wrong_type"
        )
    return options.get("include_usage") is True


def _changes(
    body: Mapping[str, object], renamed: str | None, metadata: dict[str, object] | None
) -> dict[str, object]:
    """Return the members that must be other than the client sent them; None: left out."""
    changes: dict[str, object] = {name: None for name in NOT_TO_ENGINE if name in body}
    if renamed is not None:
        changes["model"] = renamed
    if metadata is not None:
        changes["metadata"] = metadata or None
    return changes


def _upstream_body(
    raw: bytes, body: Mapping[str, object], changes: Mapping[str, object], *, add_usage: bool
) -> bytes:
    if not changes and not add_usage:
        return raw
    if not changes and "stream_options" not in body:
        # Put it before the client's own members; no other byte is touched.
        return raw.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)
    changed = {**body, **changes}
    for name, value in changes.items():
        if value is None:
            del changed[name]
    if add_usage:
        options = body.get("stream_options")
        given = options if isinstance(options, dict) else {}
        changed["stream_options"] = {**given, "include_usage": True}
    return orjson.dumps(changed)
