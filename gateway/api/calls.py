"""What a client asks for: headers, body and `metadata` of one completion call, read and checked."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import orjson

from gateway.api.errors import ApiError, bad_request
from gateway.backends.base import Header
from gateway.core.types import TenantId, WorkflowKey, WorkflowRef

MAX_ID_BYTES = 256
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
MAX_HINT_TOKENS = 1_000_000
TTFT_DEADLINE_S_PER_TOKEN = 0.05
"""A target for the first token becomes a deadline for the last by this, a slow reader's pace."""

SAID_BY_US = (
    "workflow-id",
    "workflow-name",
    "workflow-stage",
    "workflow-deadline-ms",
    "workflow-final",
    "request-deadline-ms",
    "request-id",
    "session-id",
    "expected-output-tokens",
    "hexsage-explain",
)
"""Headers, with `x-` before them; without it, keys of the body's `metadata`."""

WORKFLOW_ID_ALIASES = (
    b"x-claude-code-session-id",
    b"x-session-affinity",
    b"session-id",
    b"x-litellm-session-id",
    b"x-dynamo-session-id",
)
FLOW_ALIASES = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
TTFT_ALIASES = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")

READ_HEADERS = frozenset(
    {
        *(f"x-{name}".encode() for name in SAID_BY_US),
        *WORKFLOW_ID_ALIASES,
        *FLOW_ALIASES,
        *TTFT_ALIASES,
        b"content-encoding",
        b"x-dynamo-session-final",
        b"x-stainless-read-timeout",
        b"x-stainless-retry-count",
    }
)

NOT_TO_ENGINE = ("kv_transfer_params", "request_id", "priority")
"""Body fields that engines would obey and clients may not use; `priority` upstream is ours."""

_TRUE = frozenset({"true", "1", "yes"})
_INTEGER = re.compile(r"\d{1,15}")
_SECONDS = re.compile(r"\d{1,9}(\.\d{0,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One completion call as its client meant it."""

    model: str
    body: Mapping[str, object]
    upstream_body: bytes
    """The body as it came, or encoded anew where something had to change."""
    stream: bool
    hide_usage: bool
    max_tokens: int | None
    hint_tokens: int | None
    priority: int
    flow: str
    workflow: WorkflowRef | None
    stage: str | None
    """The stage it names, with or without a workflow."""
    deadline_s: float | None
    """SLO of a call without a workflow, from its first try."""
    ttft_s: float | None
    is_retry: bool
    explain: bool
    request_id: bytes | None


def pick_headers(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Return the headers that are read, the last of each name."""
    return {name: value for name, value in headers if name in READ_HEADERS}


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
    target_of: Callable[[str], str],
    *,
    is_chat: bool,
) -> Asked:
    """Return what a completion call asks for; ApiError if it cannot be understood.

    `target_of` resolves a public model name to the one that backends serve.
    """
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError(
            status=415, message="Compressed bodies are not taken.", code="unsupported_encoding"
        )
    body = parse_body(raw)
    model = _model(body)
    _check_prompt(body, is_chat=is_chat)
    stream = _boolean(body, "stream")
    said, metadata = _said(headers, body)
    target = target_of(model)
    changes = _changes(body, target, metadata)
    wants_usage = _wants_usage(body)
    hide_usage = stream and not wants_usage
    stage = _short(said.get("workflow-stage", ""), "x-workflow-stage") or None
    return Asked(
        model=target,
        body=body,
        upstream_body=_upstream_body(raw, body, changes, add_usage=hide_usage),
        stream=stream,
        hide_usage=hide_usage,
        max_tokens=_max_tokens(body),
        hint_tokens=_integer(said, "expected-output-tokens", MAX_HINT_TOKENS),
        priority=_priority(body),
        flow=_first(headers, FLOW_ALIASES, "the fairness id"),
        workflow=_workflow(said, headers, tenant, stage),
        stage=stage,
        deadline_s=_deadline_s(said, headers),
        ttft_s=_ttft_s(headers),
        is_retry=headers.get(b"x-stainless-retry-count", b"0").strip() not in (b"", b"0"),
        explain=said.get("hexsage-explain", "").lower() in _TRUE,
        request_id=said["request-id"].encode("latin-1", "replace")
        if "request-id" in said
        else None,
    )


def _model(body: Mapping[str, object]) -> str:
    model = body.get("model")
    if model is None:
        raise bad_request("`model` is missing.", param="model", code="missing_field")
    if not isinstance(model, str) or not model.strip():
        raise bad_request("`model` must be a non-empty string.", param="model", code="wrong_type")
    return model


def _check_prompt(body: Mapping[str, object], *, is_chat: bool) -> None:
    if is_chat:
        messages = body.get("messages")
        if messages is None:
            raise bad_request("`messages` is missing.", param="messages", code="missing_field")
        if not isinstance(messages, list) or not messages:
            raise bad_request(
                "`messages` must be a non-empty list.", param="messages", code="wrong_type"
            )
        return
    prompt = body.get("prompt")
    if prompt is None and body.get("prompt_embeds") is None:
        raise bad_request("`prompt` is missing.", param="prompt", code="missing_field")
    if prompt is not None and not isinstance(prompt, str | list):
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


def _said(
    headers: Mapping[bytes, bytes], body: Mapping[str, object]
) -> tuple[dict[str, str], dict[str, object] | None]:
    """Return what is said in our own names, and `metadata` without them if it had some."""
    said: dict[str, str] = {}
    rest: dict[str, object] | None = None
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        ours = [name for name in SAID_BY_US if name in metadata]
        if ours:
            rest = {name: value for name, value in metadata.items() if name not in ours}
            said = {name: _as_text(name, metadata[name]) for name in ours}
    for name in SAID_BY_US:
        value = headers.get(b"x-" + name.encode())
        if value is not None:
            said[name] = value.decode("latin-1").strip()
    return said, rest


def _as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise bad_request(
        f"`metadata.{name}` must be a string.", param=f"metadata.{name}", code="wrong_type"
    )


def _integer(said: Mapping[str, str], name: str, most: int) -> int | None:
    value = said.get(name)
    if value is None or value == "":
        return None
    if not _INTEGER.fullmatch(value) or not 1 <= int(value) <= most:
        raise bad_request(
            f"`x-{name}` must be a whole number from 1 to {most}.",
            param=f"x-{name}",
            code="wrong_type",
        )
    return int(value)


def _short(value: str, name: str) -> str:
    if len(value.encode("utf-8", "replace")) > MAX_ID_BYTES:
        raise bad_request(
            f"`{name}` is longer than {MAX_ID_BYTES} bytes.", param=name, code="too_long"
        )
    return value


def _first(headers: Mapping[bytes, bytes], names: Iterable[bytes], what: str) -> str:
    for name in names:
        value = headers.get(name, b"").strip()
        if value:
            return _short(value.decode("latin-1"), what)
    return ""


def _workflow(
    said: Mapping[str, str], headers: Mapping[bytes, bytes], tenant: TenantId, stage: str | None
) -> WorkflowRef | None:
    identity = _short(said.get("workflow-id", ""), "x-workflow-id")
    identity = identity or _first(headers, WORKFLOW_ID_ALIASES, "the session id")
    if not identity:
        return None
    deadline_ms = _integer(said, "workflow-deadline-ms", MAX_DEADLINE_MS)
    final = said.get("workflow-final", "").lower() in _TRUE
    dynamo_final = headers.get(b"x-dynamo-session-final", b"").lower() in (b"true", b"1")
    return WorkflowRef(
        key=WorkflowKey(tenant, identity),
        name=_short(said.get("workflow-name", ""), "x-workflow-name") or None,
        stage=stage,
        deadline_s=None if deadline_ms is None else deadline_ms / 1000,
        final=final or dynamo_final,
    )


def _deadline_s(said: Mapping[str, str], headers: Mapping[bytes, bytes]) -> float | None:
    deadline_ms = _integer(said, "request-deadline-ms", MAX_DEADLINE_MS)
    if deadline_ms is not None:
        return deadline_ms / 1000
    # The client's library will give up after this long.
    patience = headers.get(b"x-stainless-read-timeout", b"").decode("latin-1").strip()
    if _SECONDS.fullmatch(patience) and float(patience) > 0:
        return float(patience)
    return None


def _ttft_s(headers: Mapping[bytes, bytes]) -> float | None:
    value = _first(headers, TTFT_ALIASES, "the TTFT target")
    return int(value) / 1000 if _INTEGER.fullmatch(value) and int(value) > 0 else None


def _changes(
    body: Mapping[str, object], target: str, metadata: dict[str, object] | None
) -> dict[str, object]:
    """Return the members that must be other than the client sent them; None: left out."""
    changes: dict[str, object] = {name: None for name in NOT_TO_ENGINE if name in body}
    if target != body["model"]:
        changes["model"] = target
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
