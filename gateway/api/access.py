"""AccessLog: a line for every request that is over. It never holds a query, a header or a body."""

import logging
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.backends.base import Answer
from gateway.core.types import BackendId, TenantId
from gateway.runtime.clock import Clock

NOTE = "hexsage.access"
"""Where a request's scope holds its Note, if anybody wants to read one."""
MAX_TEXT = 200
"""Of a path or a model's name, which clients may make as long as they like."""
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""What machines ask all day: told at level debug only."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Note:
    """What becomes known of a request on its way."""

    status: int | None = None
    """None: its client left before there was an answer."""
    request_id: str = ""
    tenant: TenantId | None = None
    model: str | None = None
    backend: BackendId | None = None
    """Where the answer came from."""
    answer: Answer | None = None


class AccessLog:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and tell of it once it is over."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = self._clock.now()
        note = scope[NOTE] = Note()

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note.status = message["status"]
                ids = (
                    value for name, value in message.get("headers", ()) if name == b"x-request-id"
                )
                note.request_id = next(ids, b"").decode("latin-1")
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
            if log.isEnabledFor(level):
                fields = _fields(scope, note, self._clock.now() - began_at)
                log.log(level, "request", extra={"fields": fields})


def _fields(scope: Scope, note: Note, duration_s: float) -> dict[str, object]:
    usage = note.answer.usage if note.answer is not None else None
    told: dict[str, object] = {
        "method": scope["method"],
        "path": scope["path"][:MAX_TEXT],
        "status": note.status,
        "duration_ms": round(duration_s * 1000, 1),
        "request_id": note.request_id,
        "tenant": note.tenant,
        "model": note.model and note.model[:MAX_TEXT],
        "backend": note.backend,
        "input_tokens": usage and usage.prompt_tokens,
        "output_tokens": usage and usage.output_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}
