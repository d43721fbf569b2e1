"""What every raw ASGI handler needs: the body, an answer in one piece, a request id."""

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus
from itertools import count
from secrets import token_hex

from starlette.types import Receive, Scope, Send

from gateway.api.errors import ApiError
from gateway.backends.base import Header, Shape

BODY_S = 30.0
"""How long a client may take to send its body."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Ids that nobody else has: clients' own may repeat."""

    def __init__(self) -> None:
        self._prefix = token_hex(6)
        self._numbers = count(1)

    def next(self) -> str:
        """Return a new id."""
        return f"hs-{self._prefix}-{next(self._numbers):x}"


def kept_request_id(value: bytes | None, fallback: str) -> bytes:
    """Return the client's request id if it is fit to be repeated, else the fallback."""
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value
    return fallback.encode("ascii")


class BodyGone(Exception):
    """The client left before it had sent its request."""


async def read_body(
    scope: Scope, receive: Receive, limit_bytes: int, within_s: float = BODY_S
) -> bytes:
    """Return the request's body; ApiError if it is too large or too slow."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise too_large(limit_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise BodyGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
        return body
    try:
        async with asyncio.timeout(within_s):
            return await _read_rest(body, receive, limit_bytes)
    except TimeoutError:
        raise stalled() from None


async def _read_rest(first: bytes, receive: Receive, limit_bytes: int) -> bytes:
    pieces, size = [first], len(first)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyGone
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        if not message.get("more_body"):
            return b"".join(pieces)


def too_large(limit_bytes: int) -> ApiError:
    """Return the refusal of a body beyond a limit."""
    return ApiError(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        message=f"The request's body is larger than {limit_bytes} bytes.",
        code="body_too_large",
        headers=((b"connection", b"close"),),
    )


def stalled() -> ApiError:
    """Return what a client is told that stops sending."""
    return ApiError(
        status=HTTPStatus.REQUEST_TIMEOUT,
        message="The request's body did not arrive in time.",
        code="body_timeout",
        headers=((b"connection", b"close"),),
    )


async def send_whole(send: Send, status: int, headers: Iterable[Header], body: bytes) -> None:
    """Send an answer in one piece."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send, error: ApiError, request_id: bytes, shape: Shape = Shape.CHOICES
) -> None:
    """Send an error in one piece."""
    headers = [*error.response_headers(), (b"x-request-id", request_id)]
    await send_whole(send, error.status, headers, error.body(shape))
