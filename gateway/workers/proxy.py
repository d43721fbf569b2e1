"""Proxy: what a worker does not answer itself, it asks the scheduler process for."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

from gateway.api.asgi import RequestIds, send_error
from gateway.api.disconnect import ClientLeft, client_present
from gateway.api.door import cut
from gateway.workers.remote import unavailable

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",  # every answer has one already, or gets it from the worker
    }
)
_FRAMES = frozenset({b"content-length", b"transfer-encoding"})


class Proxy:
    """An ASGI application: the scheduler process's own, at the end of a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._session: aiohttp.ClientSession | None = None
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and its answer back."""
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            if any(name in _FRAMES for name, _ in scope["headers"]):
                await self._pass(scope, _pieces(receive), send_on)
            else:
                async with client_present(receive):
                    await self._pass(scope, None, send_on)
        except aiohttp.ClientError:
            if has_begun:
                await cut(scope, receive)
            else:
                await send_error(send, unavailable(), self._ids.next().encode())
        except (ClientLeft, _BodyGone):
            pass

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def _pass(self, scope: Scope, body: AsyncIterator[bytes] | None, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        path = scope.get("raw_path") or scope["path"].encode()
        target = path.decode("latin-1") + (f"?{query}" if query else "")
        headers = [
            (name.decode("latin-1"), _text(value))
            for name, value in scope["headers"]
            if name not in HOP_BY_HOP
        ]
        async with self._connections().request(
            scope["method"],
            URL("http://scheduler" + target, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
        ) as answer:
            kept = [
                (name.lower(), value)
                for name, value in answer.raw_headers
                if name.lower() not in HOP_BY_HOP
            ]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._path),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            )
        return self._session


class _BodyGone(Exception):
    """The client left before it had sent its request."""


def _text(value: bytes) -> str:
    """Return a header's value as aiohttp writes it back: in UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _BodyGone
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
