"""Connections carry requests in and answers out as HTTP/1.1 says, whatever applications do."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.asgi import read_body, send_whole
from gateway.api.door import WRITE
from gateway.api.guard import NO_LIMITS, ConnectionLimits
from gateway.api.protocol import guarded
from tests.api.harness import a_gateway, chat, overhearing, serving_app
from tests.backends.fake_backend import Exchange, a_fake_backend, frame

pytestmark = pytest.mark.anyio
POST = b"POST /x HTTP/1.1\r\nhost: gw\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: gw\r\nconnection: close\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what was asked."""
    body = await read_body(scope, receive, 1 << 20)
    said = b"%b %b %b|" % (scope["path"].encode(), scope["query_string"], body)
    await send_whole(send, 200, [], said)


def served(
    app: ASGIApp, limits: ConnectionLimits = NO_LIMITS, timeout_keep_alive: int = 5
) -> AbstractAsyncContextManager[int]:
    """Serve it on a free port."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    return serving_app(asked, http=guarded(limits), timeout_keep_alive=timeout_keep_alive)


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def sends(self, *pieces: bytes) -> None:
        """Send them apart."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0.01)

    async def hears(self, mark: bytes) -> bytes:
        async with asyncio.timeout(5):
            return await self._reader.readuntil(mark)

    async def hears_all(self) -> bytes:
        """What comes until the server closes."""
        try:
            async with asyncio.timeout(5):
                return await self._reader.read()
        finally:
            self._writer.close()


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((b"content-length: 5\r\n\r\nhello",), id="at once"),
        pytest.param((b"content-length: 5\r\n\r\n", b"he", b"llo"), id="behind its head"),
        pytest.param((b"content-length: 5\r\n\r\nhe", b"llo"), id="in part"),
        pytest.param(
            (b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nll", b"o\r\n0\r\n\r\n"),
            id="in chunks",
        ),
        pytest.param(
            (b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nexpect: 100-continue\r\n\r\n",),
            id="with a trailer",
        ),
    ],
)
async def test_a_body_arrives_however_it_is_sent(pieces: tuple[bytes, ...]) -> None:
    async with served(echo) as port:
        client = await Client.at(port)
        await client.sends(POST + pieces[0], *pieces[1:], LAST)

        heard = await client.hears_all()

        assert b"\r\n\r\n/x  hello|HTTP/1.1 200 OK\r\n" in heard
        assert heard.endswith(b"/last  |")
        assert b"100 Continue" not in heard


async def test_who_asks_whether_to_go_on_is_told_once_the_body_is_wanted() -> None:
    async with served(echo) as port:
        client = await Client.at(port)
        await client.sends(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await client.hears(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

        await client.sends(b"hi", LAST)

        assert b"/x  hi|" in await client.hears_all()


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with served(echo) as port:
        client = await Client.at(port)
        requests = [b"GET /%d HTTP/1.1\r\nhost: gw\r\n\r\n" % number for number in range(20)]
        await client.sends(b"".join(requests) + LAST)

        heard = await client.hears_all()

        bodies = [part.rpartition(b"\r\n\r\n")[2] for part in heard.split(b"|")]
        assert bodies == [*(b"/%d  " % number for number in range(20)), b"/last  ", b""]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/a%20b?c=%20d", b"/a b c=%20d |"),
        (b"/" + b"a" * 5000 + b"?q", b"/" + b"a" * 5000 + b" q |"),
        (b"http://gw/a?b", b"/a b |"),
    ],
)
async def test_a_target_is_taken_apart_the_first_time_and_the_next(
    target: bytes, expected: bytes
) -> None:
    async with served(echo) as port:
        for _ in range(2):
            client = await Client.at(port)
            await client.sends(b"GET %b HTTP/1.1\r\nhost: gw\r\nconnection: close\r\n\r\n" % target)
            assert (await client.hears_all()).endswith(expected)


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_client_that_would_rather_speak_http_2_is_answered_all_the_same(
    name: bytes, *, apart: bool
) -> None:
    # Java's own client asks so on every connection without TLS; the parser would drop the body.
    body = b"one\r\nupgrade: two\r\n\r\n"
    head = POST + (
        b"Connection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n%b: h2c\r\n\r\n" % (len(body), name)
    )
    async with served(echo) as port:
        client = await Client.at(port)
        await client.sends(*((head, body) if apart else (head + body,)))
        heard = await client.hears(b"|")
        await client.sends(LAST)
        heard += await client.hears_all()
    assert b"/x  " + body + b"|" in heard
    assert heard.endswith(b"/last  |")


async def test_head_is_answered_by_a_head() -> None:
    async with served(echo) as port:
        client = await Client.at(port)
        await client.sends(b"HEAD /x HTTP/1.1\r\nhost: gw\r\n\r\n", LAST)

        heard = await client.hears_all()

        head, _, rest = heard.partition(b"\r\n\r\n")
        assert b"content-length: 5" in head
        assert rest.startswith(b"HTTP/1.1 200 OK")


async def test_a_client_that_leaves_ends_what_it_has_sent_ahead_too() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin_stream()
        while True:
            await exchange.chunk(frame("a"))
            await exchange.pause(0.01)

    async with a_fake_backend(endless) as engine, a_gateway(engine) as gw:
        wire = await gw.dial(chat(stream=True))
        await wire.read_until(b"\n\n")
        wire.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n" * 2)
        await wire.writer.drain()
        wire.reset()

        await gw.until(lambda: engine.running == 0)
        assert gw.settled() == {("abandoned", ""): 1}


async def trailers(client: Client) -> None:
    await client.sends(POST + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: ")
    await client.sends(*[b"y" * 500] * 10)


async def many_trailers(client: Client) -> None:
    await client.sends(POST + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n")
    await client.sends(*[b"x: y\r\n" * 100] * 10)


@pytest.mark.parametrize("sends", [trailers, many_trailers])
async def test_what_stands_behind_a_body_has_the_bound_of_a_head(
    sends: Callable[[Client], Coroutine[object, object, None]],
) -> None:
    limits = ConnectionLimits(
        max_connections=9, max_header_bytes=2000, header_timeout_s=5, body_timeout_s=5
    )
    async with served(echo, limits) as port:
        client = await Client.at(port)
        sending = asyncio.ensure_future(sends(client))

        assert b"HTTP/1.1 431 " in await client.hears_all()
        await asyncio.wait([sending])
        sending.exception()  # the door may have been closed under it


async def test_an_idle_connection_is_closed_in_time_and_a_busy_one_is_not() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(scope, receive, 9)
        await asyncio.sleep(1.2)
        await send_whole(send, 200, [], b"late|")

    async with served(slow, timeout_keep_alive=1) as port:
        client = await Client.at(port)
        for _ in range(2):  # an answer that takes longer than that is waited for, and kept alive
            await client.sends(POST + b"\r\n")
            await client.hears(b"late|")

        assert await client.hears_all() == b""


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive, send


async def a_body_first(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.body", "body": b"hi"})


async def a_line_end(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send_whole(send, 200, [(b"x", b"a\r\nset-cookie: b")], b"hi")


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive, send
    raise ZeroDivisionError


@pytest.mark.parametrize("app", [nothing, a_body_first, failing])
async def test_an_application_that_says_nothing_is_an_error(app: ASGIApp) -> None:
    with overhearing() as ear:
        async with served(app) as port:
            client = await Client.at(port)
            await client.sends(POST + b"\r\n")

            assert (await client.hears_all()).startswith(b"HTTP/1.1 500 ")
        assert len(ear.errors) == 1


async def half(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hi", "more_body": True})


async def too_much(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hi", "more_body": True})
    await send({"type": "http.response.body", "body": b"there"})


@pytest.mark.parametrize("app", [half, too_much, a_line_end])
async def test_an_application_that_breaks_off_is_no_end(app: ASGIApp) -> None:
    with overhearing() as ear:
        async with served(app) as port:
            client = await Client.at(port)
            await client.sends(POST + b"\r\n")

            heard = await client.hears_all()

        assert b"set-cookie" not in heard
        assert not heard.endswith(b"0\r\n\r\n")
        assert b"there" not in heard
        assert len(ear.errors) == 1


async def test_what_is_written_at_once_stands_in_its_place() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        write = scope["state"][WRITE]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert write(b"one ")
        assert write(b"two ")
        await send({"type": "http.response.body", "body": b"three"})

    async with served(app) as port:
        client = await Client.at(port)
        await client.sends(LAST)

        assert (await client.hears_all()).endswith(
            b"\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"
        )
