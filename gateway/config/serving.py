"""What clients and operators meet: paths, limits, the port of /admin, traces, logs."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from gateway.config.entry import ApiPath, Count, Entry, Positive

MAX_JSON_DEPTH = 250
"""What is nested deeper could be read, but not be written anew where something has to change."""
OWN_PATHS = (
    "/admin",
    "/dashboard",
    "/docs",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/redoc",
    "/v1/models",
    "/v1/workflows",
)
"""Never passed through: the gateway answers there, or means to."""


def _foreign(path: str) -> str:
    if "{" in path or path.startswith(OWN_PATHS):
        raise ValueError(f"'{path}' is the gateway's own, or no full path")
    return path


ForeignPath = Annotated[ApiPath, AfterValidator(_foreign)]


class LimitsEntry(Entry):
    """What clients may send and how slowly, and what engines may answer."""

    max_body_bytes: Count = 16 * 1024 * 1024
    """Of a JSON body."""
    max_upload_bytes: Count = 256 * 1024 * 1024
    """Forms with a file in them, which are passed on as they come."""
    max_header_bytes: Count = 64 * 1024
    """Of a request's line and headers together."""
    max_json_depth: Annotated[int, Field(gt=0, le=MAX_JSON_DEPTH)] = 128
    """Of a body: brackets in brackets."""
    max_connections: Count = 8192
    """Clients at once; fewer if file handles are few."""
    header_timeout_s: Positive = 20.0
    """From a request's first byte, or a connection's start, to the end of its headers."""
    body_timeout_s: Positive = 30.0
    """For a JSON body in all; for what is uploaded, and everything else, between its pieces."""
    slow_reader_s: Positive = 60.0
    """A client that takes nothing of its answer for so long has left."""
    keep_alive_s: Positive = 75.0
    """How long a connection may be idle; longer than clients keep theirs."""
    max_answer_bytes: Count = 64 * 1024 * 1024
    """Of an engine's whole answer."""
    max_error_bytes: Count = 64 * 1024
    """Of an engine's error; what is longer is cut off."""
    max_event_bytes: Count = 16 * 1024 * 1024
    """Of one event of an engine's stream, and so of one line."""


class AdminEntry(Entry):
    """Where /admin, /metrics and the docs are served, if not with everything else."""

    host: str = "127.0.0.1"
    """Address to listen on, with a port of its own."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """None: the same as for everything else."""


class TelemetryEntry(Entry):
    """Where traces go. Everything else about them is said by OpenTelemetry's OTEL_* variables."""

    endpoint: str | None = None
    """Base URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; None: what
    OTEL_EXPORTER_OTLP_ENDPOINT says, and nowhere if it says nothing."""

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("must be http://host:port or https://host:port")
        return url


class LogEntry(Entry):
    """What is said on standard error."""

    format: Literal["text", "json"] = "text"
    """A line for people, or a JSON object in a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less than this is not said."""
    access: bool = False
    """A line for every request, at level info: method, path, status, duration, request id, tenant,
    model, backend, tokens. Never a prompt, a query or a header."""
