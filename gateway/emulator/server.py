"""EngineServer: one emulated engine as an ASGI application, and how several share a process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from random import Random

import orjson
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.emulator.asks import Ask, Refusal, Reply
from gateway.emulator.dialects import DIALECTS, Dialect
from gateway.emulator.faults import NO_FAULTS, Faults, read_faults
from gateway.emulator.options import EngineOptions
from gateway.emulator.paced import ClientLeft, EngineDied, Generation, PacedEngine

KEEP_ALIVE_S = 5
"""vLLM's (uvicorn's) default: an idle connection is closed after this."""
SHUTDOWN_S = 2
FAULTS_PATH = "/emulator/faults"
SPEED_HEADER = b"x-emulator-speed"
_ABORT = "abort"
"""Where a connection leaves, for its requests, the way to cut it."""

Headers = dict[bytes, bytes]


class EngineServer:
    """What answers at one port."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._dialect: Dialect = DIALECTS[options.kind](options)
        self.engine = PacedEngine(options, self._dialect.counters())
        self.faults: Faults = NO_FAULTS
        self._random = Random(f"{options.seed}/{options.name}/{options.port}")
        self._speed = f"{options.speed:g}".encode()
        self._serving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        try:
            self._dialect.authorize(path, headers)
            body = await _body(receive)
            if path == FAULTS_PATH and self.options.allow_faults:
                reply = self._change_faults(method, body)
            elif self.faults.refuse:
                await _cut(scope, receive)
                return
            elif method == "POST" and path in self._dialect.generates:
                await self._generate(scope, headers, body, receive, send)
                return
            else:
                reply = self._dialect.plain(
                    method, path, headers, body, lambda: self.engine.status(self._serving)
                )
        except Refusal as refused:
            reply = refused.reply
        except ClientLeft:
            return
        await self._reply(send, headers, reply)

    def _change_faults(self, method: str, body: bytes) -> Reply:
        if method == "POST":
            try:
                faults = read_faults(body)
            except ValueError as error:
                return Reply(400, orjson.dumps({"error": str(error)}))
            if faults.crash:
                self.engine.crash()
            if faults.slow != self.faults.slow:
                self.engine.slow_down(faults.slow)
            if faults.stall != self.faults.stall:
                self.engine.stall(faults.stall)
            self.faults = faults
        return Reply(200, orjson.dumps(asdict(self.faults)))

    def stop(self) -> None:
        """Take nothing new; end what is running, or let it end by itself, as the engine would."""
        self.engine.stop(aborts=self._dialect.aborts_at_shutdown)

    # -- generating

    async def _generate(
        self, scope: Scope, headers: Headers, body: bytes, receive: Receive, send: Send
    ) -> None:
        ask: Ask = self._dialect.generates[scope["path"]](
            headers,
            body,
            fresh_id=self._fresh_id(),
            created=int(datetime.now(UTC).timestamp()),
        )
        if self.engine.is_stopped:
            raise Refusal(self._dialect.stopping())
        if self._strikes(self.faults.error_rate):
            raise Refusal(self._dialect.failed())
        generation = self.engine.start(ask)
        if generation is None:
            await self._refuse(send, headers, ask, self._dialect.busy())
            return
        is_cut = self._strikes(self.faults.drop_rate)
        watcher = asyncio.ensure_future(self._watch(receive, generation))
        self._serving += 1
        try:
            if ask.is_stream:
                await self._stream(send, headers, generation, is_cut)
            else:
                await self._answer(send, headers, generation, is_cut)
            if is_cut:
                await _cut(scope, receive)
        finally:
            self._serving -= 1
            watcher.cancel()
            self.engine.abandon(generation)

    async def _watch(self, receive: Receive, generation: Generation) -> None:
        """Abort what is left of the work when the client is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.engine.abandon(generation)

    async def _answer(
        self, send: Send, headers: Headers, generation: Generation, is_cut: bool
    ) -> None:
        try:
            await generation.news()
            while generation.open:
                await generation.news()
        except EngineDied:
            raise Refusal(self._dialect.dead()) from None
        if not is_cut:
            await self._reply(
                send, headers, self._dialect.answer(generation.ask, generation.progress)
            )

    async def _stream(
        self, send: Send, headers: Headers, generation: Generation, is_cut: bool
    ) -> None:
        ask, progress = generation.ask, generation.progress
        await self._start_stream(send, headers, ask)
        try:
            is_open = True
            while is_open:
                await self._news(send, generation)
                is_open = bool(generation.open)
                frames = self._dialect.frames(ask, progress)
                if not is_open:
                    frames += self._dialect.ending(ask, progress)
                await send(_chunk(frames, more=is_open or is_cut))
                if is_cut:
                    return
        except EngineDied:
            await send(_chunk(self._dialect.in_stream(self._dialect.dead(), ask), more=False))

    async def _news(self, send: Send, generation: Generation) -> None:
        """Wait for news; what an engine sends while there are none goes out meanwhile."""
        keep_alive = self._dialect.keep_alive
        if keep_alive is None:
            await generation.news()
            return
        comment, silence_s = keep_alive
        while True:
            try:
                async with asyncio.timeout(silence_s / self.options.speed):
                    await generation.news()
            except TimeoutError:
                await send(_chunk(comment, more=True))
            else:
                return

    async def _refuse(self, send: Send, headers: Headers, ask: Ask, reply: Reply) -> None:
        if not ask.is_stream:
            raise Refusal(reply)
        await self._start_stream(send, headers, ask)
        await send(_chunk(self._dialect.in_stream(reply, ask), more=False))

    def _strikes(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

    def _fresh_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    # -- answering

    async def _start_stream(self, send: Send, headers: Headers, ask: Ask) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*self._dialect.stream_headers(ask), *self._own_headers(headers)],
            }
        )

    async def _reply(self, send: Send, headers: Headers, reply: Reply) -> None:
        out = [
            (b"content-length", str(len(reply.body)).encode()),
            *self._own_headers(headers),
            *reply.headers,
        ]
        if reply.content_type:
            out.append((b"content-type", reply.content_type.encode()))
        if self._dialect.reports_load and b"endpoint-load-metrics-format" in headers:
            out.append((b"endpoint-load-metrics", self._load(headers)))
        await send({"type": "http.response.start", "status": reply.status, "headers": out})
        await send(_chunk(reply.body, more=False))

    def _own_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        own = [(SPEED_HEADER, self._speed)]
        if self.options.request_id_headers:
            given = headers.get(b"x-request-id") or self._fresh_id().encode()
            own.append((b"x-request-id", given))
        return own

    def _load(self, headers: Headers) -> bytes:
        """The load report (ORCA) that vLLM adds to whole answers on demand."""
        status = self.engine.status(self._serving)
        named = {
            "num_requests_waiting": float(status.waiting),
            "kv_cache_usage_perc": status.kv_share,
        }
        if headers[b"endpoint-load-metrics-format"].upper() == b"TEXT":
            values = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
            return f"TEXT {values}".encode()
        return b"JSON " + orjson.dumps({"named_metrics": named})


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _cut(scope: Scope, receive: Receive) -> None:
    """Cut the connection, and wait until it is."""
    scope["state"][_ABORT]()
    while (await receive())["type"] != "http.disconnect":
        pass


def _chunk(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


# -- a process


class EmulatorApp:
    """Several engines in one process, told apart by the port a request came in at."""

    def __init__(self, engines: dict[int, EngineServer]) -> None:
        self.engines = engines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.engines[scope["server"][1]](scope, receive, send)


class _Connection(HttpToolsProtocol):
    """A connection that its requests can cut."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][_ABORT] = self.transport.abort


class EmulatorServer(uvicorn.Server):
    """uvicorn for an EmulatorApp; signals are the caller's business."""

    def __init__(self, app: EmulatorApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self.app = app
        self.ready = asyncio.Event()

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]  # a context manager
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for engine in self.app.engines.values():
            engine.stop()
        await super().shutdown(sockets)


@asynccontextmanager
async def serving(all_options: Sequence[EngineOptions]) -> AsyncIterator[EmulatorServer]:
    """Serve these engines while the block runs; OSError if a port is taken."""
    sockets: list[socket.socket] = []
    engines: dict[int, EngineServer] = {}
    try:
        for options in all_options:
            sockets.append(socket.create_server((options.host, options.port), backlog=2048))
            engines[sockets[-1].getsockname()[1]] = EngineServer(options)
        server = EmulatorServer(EmulatorApp(engines))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets))
            await server.ready.wait()
            try:
                yield server
            finally:
                server.should_exit = True
    finally:
        for listener in sockets:
            listener.close()
