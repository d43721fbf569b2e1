"""RejectReason, FailureKind and bad input -> status and OpenAI error body: one table each."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Final, NamedTuple

from gateway.api.codes import Code, OwnCode, Type, of_engine
from gateway.backends.base import BackendError, EngineError, Header, Shape
from gateway.backends.lenient_json import dumps
from gateway.core.outcomes import FailureKind, RejectReason
from gateway.runtime.run import Refused


class Row(NamedTuple):
    """How one reason is told to a client."""

    status: HTTPStatus
    type: Type
    message: str
    should_retry: bool
    """What `x-should-retry` says, which OpenAI's SDKs obey before they look at the status."""


_OVERLOADED: Final = "overloaded_error"
_INVALID: Final = "invalid_request_error"
_API: Final = "api_error"

REFUSALS: Mapping[RejectReason, Row] = {
    RejectReason.MODEL_NOT_FOUND: Row(
        HTTPStatus.NOT_FOUND, _INVALID, "The model does not exist.", should_retry=False
    ),
    RejectReason.NOT_SUPPORTED: Row(
        HTTPStatus.NOT_FOUND,
        _INVALID,
        "No backend offers this API for the model.",
        should_retry=False,
    ),
    RejectReason.NO_HEALTHY_BACKEND: Row(
        HTTPStatus.SERVICE_UNAVAILABLE,
        _OVERLOADED,
        "No backend that serves the model is up.",
        should_retry=True,
    ),
    RejectReason.QUEUE_FULL: Row(
        HTTPStatus.SERVICE_UNAVAILABLE, _OVERLOADED, "The queue is full.", should_retry=True
    ),
    RejectReason.TENANT_QUEUE_FULL: Row(
        HTTPStatus.TOO_MANY_REQUESTS,
        "rate_limit_error",
        "Your share of the queue is full.",
        should_retry=True,
    ),
    RejectReason.TOO_LARGE: Row(
        HTTPStatus.BAD_REQUEST,
        _INVALID,
        "The prompt is longer than any backend could hold.",
        should_retry=False,
    ),
    RejectReason.DEADLINE_UNREACHABLE: Row(
        HTTPStatus.SERVICE_UNAVAILABLE,
        _OVERLOADED,
        "The deadline cannot be met.",
        should_retry=False,
    ),
    RejectReason.QUEUE_TIMEOUT: Row(
        HTTPStatus.SERVICE_UNAVAILABLE,
        _OVERLOADED,
        "The request waited too long for a backend.",
        should_retry=True,
    ),
    RejectReason.STAGE_NOT_READY: Row(
        HTTPStatus.CONFLICT,
        _INVALID,
        "The stages that this stage depends on are not done.",
        should_retry=False,
    ),
    RejectReason.WORKFLOW_CLOSED: Row(
        HTTPStatus.CONFLICT, _INVALID, "The workflow is closed.", should_retry=False
    ),
    RejectReason.WORKFLOW_CANCELLED: Row(
        HTTPStatus.CONFLICT, _INVALID, "The workflow was cancelled.", should_retry=False
    ),
    RejectReason.SHUTTING_DOWN: Row(
        HTTPStatus.SERVICE_UNAVAILABLE,
        _OVERLOADED,
        "The gateway is shutting down.",
        should_retry=True,
    ),
    RejectReason.DUPLICATE_ID: Row(
        HTTPStatus.CONFLICT, _INVALID, "A request with this id is under way.", should_retry=False
    ),
}

FAILURES: Mapping[FailureKind, Row] = {
    FailureKind.CONNECT: Row(
        HTTPStatus.BAD_GATEWAY, _API, "The backend could not be reached.", should_retry=True
    ),
    FailureKind.RESET: Row(
        HTTPStatus.BAD_GATEWAY,
        _API,
        "The backend closed the connection before its answer was complete.",
        should_retry=True,
    ),
    FailureKind.TIMEOUT_FIRST_TOKEN: Row(
        HTTPStatus.GATEWAY_TIMEOUT,
        _API,
        "The backend did not begin its answer in time.",
        should_retry=True,
    ),
    FailureKind.TIMEOUT_INTER_TOKEN: Row(
        HTTPStatus.GATEWAY_TIMEOUT, _API, "The backend fell silent.", should_retry=True
    ),
    FailureKind.TIMEOUT_TOTAL: Row(
        HTTPStatus.GATEWAY_TIMEOUT,
        _API,
        "The backend did not end its answer in time.",
        should_retry=False,
    ),
    FailureKind.OVERLOADED: Row(
        HTTPStatus.SERVICE_UNAVAILABLE, _OVERLOADED, "The backend is full.", should_retry=True
    ),
    FailureKind.SERVER_ERROR: Row(
        HTTPStatus.BAD_GATEWAY, _API, "The backend failed.", should_retry=True
    ),
    FailureKind.BAD_ANSWER: Row(
        HTTPStatus.BAD_GATEWAY,
        _API,
        "The backend gave an answer that is none.",
        should_retry=True,
    ),
    FailureKind.INVALID_REQUEST: Row(
        HTTPStatus.BAD_REQUEST,
        _INVALID,
        "The backend refused the request.",
        should_retry=False,
    ),
    FailureKind.UNSUPPORTED: Row(
        HTTPStatus.BAD_REQUEST,
        _INVALID,
        "No backend of the model can do what the request asks.",
        should_retry=False,
    ),
}

DEFAULT_RETRY_AFTER_S = 1.0
"""Where trying again helps and nothing is known of when."""


@dataclass(kw_only=True, eq=False)
class ApiError(Exception):
    """What a client is told instead of an answer."""

    status: int
    message: str
    type: Type = _INVALID
    code: Code
    param: str | None = None
    should_retry: bool = False
    retry_after_s: float | None = None
    headers: tuple[Header, ...] = ()

    def saying(self, message: str) -> "ApiError":
        """Return it with another message."""
        self.message = message
        return self

    def body(self, shape: Shape = Shape.CHOICES) -> bytes:
        """Return the JSON body, on one line; Anthropic's clients look for a `type` in it too."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        told: dict[str, object] = {"error": error}
        # The message may be an engine's, and no text.
        return dumps({"type": "error", **told} if shape is Shape.MESSAGE else told)

    def response_headers(self) -> list[Header]:
        """Return every header but the request id and the length."""
        headers = [
            (b"content-type", b"application/json"),
            (b"x-should-retry", b"true" if self.should_retry else b"false"),
            *self.headers,
        ]
        told = {name for name, _ in self.headers}
        if self.retry_after_s is not None and b"retry-after" not in told:
            # Whole seconds, rounded up: sooner would be refused again.
            headers.append((b"retry-after", b"%d" % max(ceil(self.retry_after_s), 1)))
            headers.append((b"retry-after-ms", b"%d" % max(ceil(self.retry_after_s * 1000), 1)))
        return headers

    def event(self, shape: Shape = Shape.CHOICES) -> bytes:
        """Return it as the last event of a stream."""
        # Anthropic's clients go by the event's name.
        name = b"event: error\n" if shape is Shape.MESSAGE else b""
        return name + b"data: " + self.body(shape) + b"\n\n"


def bad_request(
    message: str, *, param: str | None = None, code: OwnCode = "bad_request"
) -> ApiError:
    """Return the 400 for a request that nobody could serve."""
    return ApiError(status=HTTPStatus.BAD_REQUEST, message=message, param=param, code=code)


def refusal(refused: Refused) -> ApiError:
    """Return what a client is told of the scheduler's no."""
    row = REFUSALS[refused.reason]
    is_model = refused.reason is RejectReason.MODEL_NOT_FOUND
    after_s = refused.retry_after_s
    return ApiError(
        status=row.status,
        message=row.message,
        type=row.type,
        code=refused.reason,
        param="model" if is_model else None,
        should_retry=row.should_retry,
        retry_after_s=(after_s or DEFAULT_RETRY_AFTER_S) if row.should_retry else None,
    )


def failure(error: BackendError) -> ApiError:
    """Return what a client is told of a backend's failure."""
    row = FAILURES[error.kind]
    retry_after_s = DEFAULT_RETRY_AFTER_S if row.should_retry else None
    if not isinstance(error, EngineError):
        return ApiError(
            status=row.status,
            message=row.message,
            type=row.type,
            code=error.kind,
            should_retry=row.should_retry,
            retry_after_s=retry_after_s,
        )
    said = error.error
    message, param = said.get("message"), said.get("param")
    kind, code = of_engine(said, error.status, error.kind, row.type)
    return ApiError(
        status=error.status,
        message=message if isinstance(message, str) else row.message,
        type=kind,
        code=code,
        param=param if isinstance(param, str) else None,
        should_retry=row.should_retry,
        retry_after_s=retry_after_s,
        headers=error.headers,
    )


INTERNAL = ApiError(
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    message="The gateway failed.",
    type=_API,
    code="internal_error",
    should_retry=True,
)
