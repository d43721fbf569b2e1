"""How a request ends, once: the closed vocabulary of outcomes and refusals."""

from enum import StrEnum


class Outcome(StrEnum):
    """How one request ended. Also a metric label, so the set is closed."""

    COMPLETED = "completed"
    FAILED = "failed"
    """A backend failed it and no other attempt was left or allowed."""
    INVALID = "invalid"
    """A backend answered that the request itself is wrong (4xx)."""
    ABANDONED = "abandoned"
    """Its client left."""
    CANCELLED = "cancelled"
    """Its workflow, an operator or the shutdown ended it."""
    REJECTED = "rejected"
    """Never queued: see the reason."""
    EVICTED = "evicted"
    """Queued, then removed before it ran: see the reason."""


class RejectReason(StrEnum):
    """Why a request was turned away, before or after it was queued."""

    MODEL_NOT_FOUND = "model_not_found"
    NOT_SUPPORTED = "not_supported"
    """Backends have the model, none offers this API."""
    NO_HEALTHY_BACKEND = "no_healthy_backend"
    QUEUE_FULL = "queue_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    TOO_LARGE = "too_large"
    """Larger than any backend could ever hold."""
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    QUEUE_TIMEOUT = "queue_timeout"
    STAGE_NOT_READY = "stage_not_ready"
    """A strict workflow was sent a stage whose prerequisites are open."""
    WORKFLOW_CLOSED = "workflow_closed"
    WORKFLOW_CANCELLED = "workflow_cancelled"
    SHUTTING_DOWN = "shutting_down"
    DUPLICATE_ID = "duplicate_id"
    """The scheduler already holds a request with this id."""


class FailureKind(StrEnum):
    """What went wrong between the gateway and a backend."""

    CONNECT = "connect"
    RESET = "reset"
    """The connection ended before the answer did."""
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_INTER_TOKEN = "timeout_inter_token"
    TIMEOUT_TOTAL = "timeout_total"
    OVERLOADED = "overloaded"
    """The engine refused for lack of room (429 or 503)."""
    SERVER_ERROR = "server_error"
    BAD_ANSWER = "bad_answer"
    """Not HTTP, not JSON, not what was asked for."""
    INVALID_REQUEST = "invalid_request"
    """The engine says that the request is wrong: not the engine's fault."""
    UNSUPPORTED = "unsupported"
    """This kind of engine cannot do what is asked; another might. Not the engine's fault."""
