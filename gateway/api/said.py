"""What a client says of a call beside its body: our headers, their aliases, and `metadata`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.api.errors import bad_request
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

_TRUE = frozenset({"true", "1", "yes"})
_INTEGER = re.compile(r"\d{1,15}")
_SECONDS = re.compile(r"\d{1,9}(\.\d{0,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said, read and checked."""

    hint_tokens: int | None
    flow: str
    workflow: WorkflowRef | None
    stage: str | None
    """The stage it names, with or without a workflow."""
    session: str
    """The client's affinity key; empty: none."""
    deadline_s: float | None
    """SLO of a call without a workflow, from its first try."""
    ttft_s: float | None
    is_retry: bool
    explain: bool
    request_id: bytes | None


def pick_headers(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Return the headers that are read, the last of each name."""
    return {name: value for name, value in headers if name in READ_HEADERS}


def read_said(
    headers: Mapping[bytes, bytes], body: Mapping[str, object], tenant: TenantId
) -> tuple[Said, dict[str, object] | None]:
    """Return what is said, and `metadata` without it if it was said there; else None."""
    said, rest = _said(headers, body)
    stage = _short(said.get("workflow-stage", ""), "x-workflow-stage") or None
    request_id = said.get("request-id")
    return Said(
        hint_tokens=_integer(said, "expected-output-tokens", MAX_HINT_TOKENS),
        flow=_first(headers, FLOW_ALIASES, "the fairness id"),
        workflow=_workflow(said, headers, tenant, stage),
        stage=stage,
        session=_short(said.get("session-id", ""), "x-session-id"),
        deadline_s=_deadline_s(said, headers),
        ttft_s=_ttft_s(headers),
        is_retry=headers.get(b"x-stainless-retry-count", b"0").strip() not in (b"", b"0"),
        explain=said.get("hexsage-explain", "").lower() in _TRUE,
        request_id=None if request_id is None else request_id.encode("latin-1", "replace"),
    ), rest


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
    is_session = not identity
    identity = identity or _first(headers, WORKFLOW_ID_ALIASES, "the session id")
    deadline_ms = _integer(said, "workflow-deadline-ms", MAX_DEADLINE_MS)
    if not identity:
        return None
    final = said.get("workflow-final", "").lower() in _TRUE
    dynamo_final = headers.get(b"x-dynamo-session-final", b"").lower() in (b"true", b"1")
    return WorkflowRef(
        key=WorkflowKey(tenant, identity),
        name=_short(said.get("workflow-name", ""), "x-workflow-name") or None,
        stage=stage,
        deadline_s=None if deadline_ms is None else deadline_ms / 1000,
        final=final or dynamo_final,
        is_session=is_session,
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
