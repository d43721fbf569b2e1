"""/admin/overview, /admin/trends, /admin/events: what there is to see, once or every second."""

import asyncio
from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.disconnect import ClientLeft, client_present
from gateway.api.errors import ApiError
from gateway.api.overview import Sources, history, overview
from gateway.api.responses import Json
from gateway.telemetry.decisions import encode

FRAME_S = 1.0
MAX_LISTENERS = 32
PATIENCE_S = 10.0
"""A listener that takes nothing for so long is dropped."""
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Frames:
    """The overview, made at most once a second, however many look, and only if somebody does."""

    def __init__(self, make: Callable[[], dict[str, object]], now: Callable[[], float]) -> None:
        self._make = make
        self._now = now
        self._number: int | None = None
        self._frame = b""
        self.listeners = 0
        self.made = 0
        """How many frames were made."""

    def current(self) -> bytes:
        """Return this second's frame."""
        number = int(self._now() / FRAME_S)
        if number != self._number:
            self._frame = encode(self._make())
            self._number = number
            self.made += 1
        return self._frame

    async def next(self) -> bytes:
        """Wait for the next second; return its frame. What came between is not made up for."""
        now = self._now()
        await asyncio.sleep((int(now / FRAME_S) + 1) * FRAME_S - now + 0.001)
        return self.current()


class EventStream(Response):
    """Sends frames as events until the listener leaves, does not keep up, or `is_over`."""

    def __init__(
        self, frames: Frames, is_over: Callable[[], bool], patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__()
        self._frames = frames
        self._is_over = is_over
        self._patience_s = patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream."""
        self._frames.listeners += 1
        try:
            async with client_present(receive, self._patience_s) as listener:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                frame = self._frames.current()
                while not self._is_over():
                    body = b"data: %b\n\n" % frame
                    message = {"type": "http.response.body", "body": body, "more_body": True}
                    await listener.send(send, message)
                    frame = await self._frames.next()
                listener.answered()
                await send({"type": "http.response.body", "body": b""})
        except ClientLeft:
            # One that is still there but does not read gets a cut connection: no end, no more.
            abort = scope.get("state", {}).get("abort")
            if abort is not None:
                abort()
        finally:
            self._frames.listeners -= 1


def live_router(sources: Sources, is_over: Callable[[], bool]) -> APIRouter:
    """Build the routes; who may use them is for the router that includes this one to say."""
    router = APIRouter()
    frames = Frames(lambda: overview(sources), sources.clock.now)

    @router.get("/overview")
    async def get_overview() -> Response:
        return Response(frames.current(), media_type="application/json")

    @router.get("/trends")
    async def get_trends() -> Json:
        return Json(history(sources.watch.trends, sources.clock.now()))

    @router.get("/events")
    async def get_events() -> Response:
        if frames.listeners >= MAX_LISTENERS:
            raise ApiError(
                status=503,
                message=f"{MAX_LISTENERS} dashboards are open already; close one.",
                code="too_many_connections",
            )
        return EventStream(frames, is_over)

    return router
