"""The closed sets of `type` and `code` that errors bear, and what engines' own become (pure)."""

from collections.abc import Mapping
from typing import Literal, get_args

from gateway.core.outcomes import FailureKind, RejectReason

Type = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
]
OwnCode = Literal[
    "admin_closed",
    "already_tuning",
    "backend_not_found",
    "backend_unauthorized",
    "bad_request",
    "body_timeout",
    "body_too_large",
    "concurrency_limit",
    "context_length_exceeded",
    "duplicate_name",
    "header_timeout",
    "headers_too_large",
    "internal_error",
    "invalid_api_key",
    "invalid_backend",
    "invalid_configuration",
    "invalid_http",
    "invalid_json",
    "invalid_policy",
    "method_not_allowed",
    "missing_field",
    "model_not_allowed",
    "model_not_found",
    "not_found",
    "not_supported",
    "request_rate_limit",
    "scheduler_restarting",
    "token_rate_limit",
    "too_long",
    "too_many_connections",
    "unsupported_encoding",
    "unsupported_parameter",
    "workflow_not_found",
    "wrong_type",
]
Code = OwnCode | RejectReason | FailureKind
"""What stands in `code`. Every member is documented in docs/api.md."""

TYPES: frozenset[str] = frozenset(get_args(Type))
CODES: frozenset[str] = frozenset({*get_args(OwnCode), *RejectReason, *FailureKind})

_MEANT: Mapping[str, OwnCode] = {
    "context_length_exceeded": "context_length_exceeded",
    "model_not_found": "model_not_found",
    "not_supported": "not_supported",
    "unsupported_parameter": "unsupported_parameter",
}
"""What an engine, or its dialect, may say that a status does not tell."""
_OF_STATUS: Mapping[int, tuple[Type, OwnCode]] = {
    401: ("authentication_error", "backend_unauthorized"),
    403: ("permission_error", "backend_unauthorized"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: ("invalid_request_error", "body_too_large"),
}
"""Where a status says more than the kind of failure that it is."""


def of_engine(
    said: Mapping[str, object], status: int, kind: FailureKind, usual: Type
) -> tuple[Type, Code]:
    """Return type and code for an engine's error; those of its own are names that nobody knows."""
    own, code = _OF_STATUS.get(status, (usual, kind))
    told = said.get("code")
    return own, _MEANT.get(told, code) if isinstance(told, str) else code
