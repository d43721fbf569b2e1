"""Calls and errors as dialects see them."""

from typing import Any

import orjson

from gateway.backends import engine_errors
from gateway.backends.base import Call, EngineError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def a_call(path: str = CHAT, renamed: tuple[str, str] | None = None, **body: Any) -> Call:
    """A call for `m1`."""
    said: dict[str, object] = {"model": "m1"}
    if path == CHAT:
        said["messages"] = [{"role": "user", "content": "hi"}]
    else:
        said["prompt"] = "hi"
    return Call(
        path=path, body=orjson.dumps({**said, **body}), upstream_id="req-1", renamed=renamed
    )


def an_error(status: int, body: object, content_type: str = "application/json") -> EngineError:
    """The error that an answer with this status and body is."""
    raw = body.encode() if isinstance(body, str) else orjson.dumps(body)
    said = engine_errors.error_of_body(status, raw, content_type)
    return EngineError(engine_errors.kind_of_status(status), status, said)


def an_event_error(frame: dict[str, object]) -> EngineError:
    """The error that an event of a stream is."""
    status = engine_errors.status_of(frame)
    said = engine_errors.error_of(frame, status)
    return EngineError(engine_errors.kind_of_status(status), status, said)
