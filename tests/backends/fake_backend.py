"""A scripted engine on raw TCP: it can break framing, cut at any byte, reset, stall, lie.

A script is a coroutine function that is handed each API call as an `Exchange`. Probes (/health,
/v1/models, /metrics) are answered by themselves and logged apart.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

MODEL = "m1"
PROBED = ("/health", "/v1/models", "/metrics", "/openapi.json", "/info")
METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m1"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000000"} 1.0
"""


@dataclass
class Seen:
    """One API call as it arrived."""

    head: bytes
    body: bytes
    connection: int
    arrived_at: float
    gone_at: float | None = None
    """When the gateway closed the connection before the script had ended."""

    @property
    def json(self) -> dict[str, object]:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.split(": ", 1) for line in lines if line)
        return {name.lower(): value for name, value in pairs}

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()


class Gone(Exception):
    """The gateway closed the connection."""


@dataclass(eq=False)
class Exchange:
    """One API call under way, with what a script can do to it."""

    seen: Seen
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    """Where the rest of a body comes that was not read."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    """The last byte of the answer is on its way: the engine has nothing more to do."""

    async def send(self, data: bytes) -> None:
        """Send these bytes, by themselves."""
        if self.gone.is_set():
            raise Gone
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        """Wait, unless the gateway goes away first."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return
        raise Gone

    async def answer(
        self,
        body: bytes,
        *,
        status: str = "200 OK",
        content_type: str = "application/json",
        headers: Sequence[str] = (),
    ) -> None:
        """Send a whole answer."""
        self.is_over = True
        lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", *headers]
        head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
        await self.send(head.encode("latin-1") + body)

    async def begin_stream(self, headers: Sequence[str] = ()) -> None:
        """Send the head of a stream."""
        lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream; charset=utf-8", *headers]
        await self.send("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        self.is_over = self.is_over or data.endswith(DONE)
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        """Send the last chunk."""
        self.is_over = True
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """End the connection with a RST."""
        self.is_over = True
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """End the connection with a FIN."""
        self.is_over = True
        self.writer.close()


Script = Callable[[Exchange], Awaitable[None]]


class FakeBackend:
    """One engine; `async with a_fake_backend(script) as engine`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Seen] = []
        self.probes: list[Seen] = []
        self.peak = 0
        """The most calls that were under way at once."""
        self._exchanges: list[Exchange] = []
        self.port = 0
        self.is_healthy = True
        self.paths: tuple[str, ...] | None = None
        """What its /openapi.json lists; None: it has none."""
        self.models: list[str] = [MODEL]
        self.metrics: bytes | None = METRICS
        """None: 404."""
        self.slow_s: dict[str, float] = {}
        """How long a probed path takes."""
        self.base = ""
        """What its paths begin with."""
        self.required_key: str | None = None
        self.reads_bytes = 2**62
        """Of a body with a length, at most; then the script begins."""
        self.watches = True
        """Whether the gateway goes is looked for; not where a script reads on itself."""
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> int:
        return sum(not exchange.is_over for exchange in self._exchanges)

    async def start(self) -> None:
        """Listen; after a stop, on the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and cut those that there are."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writers.add(writer)
        early = b""
        try:
            while not writer.is_closing():
                seen = await self._read(reader, number, early)
                early = b""
                path = seen.target.partition("?")[0].removeprefix(self.base)
                # Calls of clients bear ids.
                if path in PROBED and "x-request-id" not in seen.headers:
                    self.probes.append(seen)
                    await self._answer_probe(Exchange(seen, writer, reader), path)
                else:
                    self.calls.append(seen)
                    early = await self._play(Exchange(seen, writer, reader))
        except (asyncio.IncompleteReadError, ConnectionError, Gone):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, number: int, early: bytes) -> Seen:
        head = early + await reader.readuntil(b"\r\n\r\n")
        seen = Seen(head, b"", number, asyncio.get_running_loop().time())
        if seen.headers.get("transfer-encoding") == "chunked":
            assert "content-length" not in seen.headers
            while size := int(await reader.readuntil(b"\r\n"), 16):
                seen.body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        else:
            length = int(seen.headers.get("content-length", "0"))
            seen.body = await reader.readexactly(min(length, self.reads_bytes))
        return seen

    async def _play(self, exchange: Exchange) -> bytes:
        """Follow the script; return what came of the next call meanwhile."""
        self._exchanges.append(exchange)
        self.peak = max(self.peak, self.running)
        if not self.watches:
            await self.script(exchange)
            self._exchanges.remove(exchange)
            return b""
        watching = asyncio.ensure_future(self._watch(exchange, exchange.reader))
        try:
            await self.script(exchange)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            self._exchanges.remove(exchange)
        return b"" if watching.cancelled() else watching.result()

    @staticmethod
    async def _watch(exchange: Exchange, reader: asyncio.StreamReader) -> bytes:
        """Note when the gateway goes; what it sends instead begins the next call."""
        try:
            data = await reader.read(1)
        except ConnectionError:
            data = b""
        if not data:
            exchange.seen.gone_at = asyncio.get_running_loop().time()
            exchange.is_over = True
            exchange.gone.set()
        return data

    async def _answer_probe(self, exchange: Exchange, path: str) -> None:
        key = exchange.seen.headers.get("authorization")
        if path in self.slow_s:
            await asyncio.sleep(self.slow_s[path])
        if not self.is_healthy:
            await exchange.answer(b"", status="503 Service Unavailable")
        elif self.required_key is not None and key != f"Bearer {self.required_key}":
            await exchange.answer(b'{"error":"Unauthorized"}', status="401 Unauthorized")
        elif path == "/v1/models":
            cards = [{"id": m, "object": "model", "max_model_len": 4096} for m in self.models]
            await exchange.answer(json.dumps({"object": "list", "data": cards}).encode())
        elif path == "/openapi.json":
            document = {"paths": dict.fromkeys(self.paths or ())}
            status = "404 Not Found" if self.paths is None else "200 OK"
            await exchange.answer(json.dumps(document).encode(), status=status)
        elif path == "/metrics":
            status = "404 Not Found" if self.metrics is None else "200 OK"
            await exchange.answer(self.metrics or b"", status=status, content_type="text/plain")
        else:
            await exchange.answer(b"")


@asynccontextmanager
async def a_fake_backend(script: Script) -> AsyncIterator[FakeBackend]:
    """Run a scripted engine."""
    backend = FakeBackend(script)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


# What engines send.

WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }
).encode()
USAGE = (
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,'
    b'"total_tokens":12}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def frame(content: str, finish: str | None = None) -> bytes:
    """One chunk of a chat stream."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    text = json.dumps({"id": "x", "model": MODEL, "choices": [choice]}, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


ROLE = b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
STREAM = [ROLE, frame("he"), frame("llo", "stop"), USAGE, DONE]


async def plain(exchange: Exchange) -> None:
    """Answer as an engine does: whole, or as a stream, as it is asked."""
    asked = exchange.seen.json
    if not asked.get("stream"):
        await exchange.answer(WHOLE)
        return
    options = asked.get("stream_options")
    wants_usage = isinstance(options, dict) and options.get("include_usage")
    await exchange.begin_stream()
    for event in STREAM:
        if event != USAGE or wants_usage:
            await exchange.chunk(event)
    await exchange.end_stream()


def streams(*pieces: bytes, gap_s: float = 0.0, ends: str = "properly") -> Script:
    """Stream these pieces, each by itself; end `properly`, by `reset`, by `fin`, or never."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for piece in pieces:
            await exchange.chunk(piece)
            if gap_s:
                await exchange.pause(gap_s)
        if ends == "properly":
            await exchange.end_stream()
        elif ends == "reset":
            await exchange.pause(0.02)
            exchange.reset()
        elif ends == "fin":
            exchange.close()
        else:
            await exchange.pause(60)

    return script


def answers(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> Script:
    """Give this answer to every call."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(body, status=status, content_type=content_type)

    return script


def after(seconds: float, then: Script = plain) -> Script:
    """Answer after a while."""

    async def script(exchange: Exchange) -> None:
        await exchange.pause(seconds)
        await then(exchange)

    return script


def once(go: asyncio.Event, then: Script = plain) -> Script:
    """Answer when it is time."""

    async def script(exchange: Exchange) -> None:
        await go.wait()
        await then(exchange)

    return script


async def resets(exchange: Exchange) -> None:
    """End every call with a RST before a byte."""
    exchange.reset()
