"""Connections within limits: too many, heads too long or too late, and nobody else disturbed."""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.api.asgi import send_whole
from gateway.api.guard import ConnectionLimits
from gateway.api.protocol import guarded
from tests.api.harness import serving_as

pytestmark = pytest.mark.anyio
GET = b"GET / HTTP/1.1\r\nhost: gw\r\n"


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer everything."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send_whole(send, 200, [], b"hello")


def served(
    max_connections: int = 10,
    max_header_bytes: int = 2000,
    header_timeout_s: float = 5.0,
    body_timeout_s: float = 5.0,
) -> AbstractAsyncContextManager[int]:
    """Serve on a free port."""
    limits = ConnectionLimits(
        max_connections=max_connections,
        max_header_bytes=max_header_bytes,
        header_timeout_s=header_timeout_s,
        body_timeout_s=body_timeout_s,
    )
    config = uvicorn.Config(
        hello,
        host="127.0.0.1",
        port=0,
        http=guarded(limits),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=1,
        timeout_graceful_shutdown=1,
    )
    return serving_as(config)


async def said(port: int, *pieces: bytes, gap_s: float = 0.0) -> bytes:
    """Send these pieces; return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(_all_of(reader))
    try:
        for piece in pieces:
            writer.write(piece)
            if gap_s:
                await asyncio.wait([reading], timeout=gap_s)
            if reading.done():
                break
        async with asyncio.timeout(10):
            return await reading
    finally:
        writer.close()


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    got = b""
    with suppress(ConnectionResetError):  # a piece that came when the door was closed already
        while piece := await reader.read(1 << 16):
            got += piece
    return got


async def answered(port: int) -> bytes:
    """Make a good request."""
    return await said(port, GET + b"connection: close\r\n\r\n")


async def test_a_good_request_is_answered() -> None:
    async with served() as port:
        assert (await answered(port)).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "head",
    [
        GET + b"x: " + b"y" * 3000 + b"\r\n\r\n",
        GET + b"".join(b"x%d: y\r\n" % n for n in range(400)) + b"\r\n",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: gw\r\n\r\n",
    ],
)
@pytest.mark.parametrize("cut", [1 << 20, 700])
async def test_a_head_that_is_too_long_is_refused(head: bytes, cut: int) -> None:
    async with served() as port:
        pieces = [head[at : at + cut] for at in range(0, len(head), cut)]
        reply = await said(port, *pieces, gap_s=0.01)

        assert reply.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"headers_too_large"' in reply
        assert b"connection: close" in reply
        assert (await answered(port)).startswith(b"HTTP/1.1 200 OK")


async def test_a_header_without_end_is_refused_before_it_fills_the_memory() -> None:
    async with served() as port:
        reply = await said(port, GET + b"x: ", *[b"y" * 500] * 100, gap_s=0.001)

        assert reply.startswith(b"HTTP/1.1 431 ")


async def test_a_long_body_is_no_long_head() -> None:
    body = b"x" * 5000
    post = b"POST / HTTP/1.1\r\nhost: gw\r\nconnection: close\r\ncontent-length: 5000\r\n\r\n"
    async with served() as port:
        for pieces in ([post + body], [post, body[:100], body[100:]]):
            assert (await said(port, *pieces)).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("sent", [b"", b"x" * 10])
async def test_a_body_that_stalls_ends_the_connection(sent: bytes) -> None:
    post = b"POST / HTTP/1.1\r\nhost: gw\r\ncontent-length: 50\r\n\r\n"
    async with served(body_timeout_s=0.3) as port:
        reply = await said(port, post + sent)

        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in reply


async def test_a_slow_body_that_goes_on_is_taken() -> None:
    post = b"POST / HTTP/1.1\r\nhost: gw\r\nconnection: close\r\ncontent-length: 10\r\n\r\n"
    async with served(body_timeout_s=0.3) as port:
        reply = await said(port, post, *[b"x"] * 10, gap_s=0.1)

        assert reply.startswith(b"HTTP/1.1 200 OK")


async def test_several_requests_on_one_connection_each_have_their_own_head() -> None:
    padded = GET + b"x: " + b"y" * 1500 + b"\r\n\r\n"
    last = GET + b"connection: close\r\n\r\n"
    async with served() as port:
        reply = await said(port, padded * 3 + last)

        assert reply.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"GET / HT",),
        (b"\r\n",) * 40,
        (b"G", b"E", b"T", b" ", b"/", *(b"a" for _ in range(40))),
        (GET + b"\r\n", b"\r\n"),
    ],
)
async def test_who_trickles_or_says_nothing_is_told_to_go(pieces: tuple[bytes, ...]) -> None:
    """Slow-loris, on a new connection and on one that has served a request."""
    async with served(header_timeout_s=0.3) as port:
        began_at = asyncio.get_running_loop().time()
        reply = await said(port, *pieces, gap_s=0.05)

        assert asyncio.get_running_loop().time() - began_at < 2
        assert b"HTTP/1.1 408 Request Timeout" in reply
        assert b'"code":"header_timeout"' in reply


async def test_whoever_is_too_much_is_turned_away_and_the_others_served() -> None:
    async with served(max_connections=3) as port:
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(3)]
        reply = await said(port)

        assert reply.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b'"code":"too_many_connections"' in reply
        assert b"retry-after: 1\r\n" in reply
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await answered(port)).startswith(b"HTTP/1.1 200 OK")


async def test_idle_connections_do_not_disturb_the_others() -> None:
    async with served(max_connections=400) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _, writer in idle[::2]:
            writer.write(b"GET /")

        for _ in range(20):
            async with asyncio.timeout(1):
                assert (await answered(port)).startswith(b"HTTP/1.1 200 OK")
        for _, writer in idle:
            writer.close()
