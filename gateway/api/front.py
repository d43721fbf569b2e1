"""Front: sends the hot routes straight to their handlers, everything else to FastAPI."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.asgi import RequestIds, kept_request_id
from gateway.api.endpoints import with_id
from gateway.api.openai import Api, ApiWithId


class Front:
    """An ASGI application. Every answer that passes it bears a request id."""

    def __init__(self, handlers: Mapping[str, Api], rest: ASGIApp) -> None:
        self._handlers = handlers
        self._rest = rest
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request on."""
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path: str = scope["path"]
        handler = self._handlers.get(path) or self._handler(path.rstrip("/"))
        # Of the root only POST is an engine's.
        if handler is not None and (path != "/" or scope["method"] == "POST"):
            await handler(scope, receive, send)
            return
        request_id = kept_request_id(
            next((value for name, value in scope["headers"] if name == b"x-request-id"), None),
            self._ids.next(),
        )

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"x-request-id", request_id)]
                message = {**message, "headers": headers}
            await send(message)

        await self._rest(scope, receive, send_with_id)

    def _handler(self, path: str) -> ASGIApp | None:
        handler = self._handlers.get(path)
        if handler is not None:
            return handler
        named = with_id(path)
        if named is None:
            return None
        endpoint, kept_id = named
        return ApiWithId(self._handlers[endpoint.path], kept_id)
