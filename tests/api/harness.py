"""A real gateway on loopback in front of scripted engines, and the oracle for afterwards."""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

import aiohttp
import uvicorn
from starlette.types import ASGIApp
from yarl import URL

from gateway.api.codes import CODES, TYPES
from gateway.api.protocol import guarded
from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from tests.backends.fake_backend import MODEL, FakeBackend, plain

Json = dict[str, object]


PATIENCE_S = 5.0
"""What is to happen at once has happened by then, on a machine that stalls for seconds, too."""


def chat(content: str = "hi", **more: object) -> Json:
    """A chat call."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, **more}


def checked(error: object) -> Json:
    """An error of OpenAI's shape, in words of the closed sets."""
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["type"] in TYPES
    assert error["code"] in CODES
    return error


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def json(self) -> Json:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def error(self) -> Json:
        return checked(self.json["error"])

    @property
    def events(self) -> list[bytes]:
        """The data of a stream's events; each must be one line."""
        blocks = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        assert blocks.pop() == b"", "the stream ends inside an event"
        datas = []
        for block in blocks:
            lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
            assert len(lines) == 1 or block.startswith(b":"), block
            datas += [line[5:].strip() for line in lines]
        for data in datas:
            if b'"error"' in data and (said := json.loads(data).get("error")) is not None:
                checked(said)
        return datas


@dataclass
class Running:
    """A gateway that runs."""

    gateway: Gateway
    engines: tuple[FakeBackend, ...]
    session: aiohttp.ClientSession
    port: int
    canary: bool = True
    """The gateway takes new calls in the end."""
    wires: list["Wire"] = field(default_factory=list)
    """Connections that tests have opened."""
    files: int = 0
    """How many are open when nobody is served."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(
        self,
        body: object,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a call; return everything that comes back."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.request("POST", path, data, headers)

    async def request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request; return everything that comes back."""
        given = {"content-type": "application/json", **(headers or {})}
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method,
            url,
            data=BytesIO(data) if data and len(data) > 1_000_000 else data,
            headers=given,
            allow_redirects=False,
        ) as response:
            got = await response.read()
            return Reply(response.status, response.headers, got, response.raw_headers)

    async def dial(self, body: object, path: str = "/v1/chat/completions") -> "Wire":
        """Send a call over a connection of its own, which the test can treat as it likes."""
        data = json.dumps(body).encode()
        return await self.dial_raw(
            b"POST %b HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (path.encode(), len(data), data)
        )

    async def dial_raw(self, request: bytes) -> "Wire":
        """Send these bytes over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        await writer.drain()
        self.wires.append(Wire(reader, writer))
        return self.wires[-1]

    def settled(self) -> dict[tuple[str, str], int]:
        """Settled requests by outcome and reason, canaries included."""
        counted: dict[tuple[str, str], int] = {}
        for (_, outcome, reason), count in self.gateway.counters.requests.items():
            counted[outcome, reason] = counted.get((outcome, reason), 0) + count
        return counted

    def tokens(self) -> tuple[int, int]:
        """Prompt and output tokens that were counted."""
        tokens = self.gateway.counters.tokens
        return tokens[MODEL, "prompt"], tokens[MODEL, "output"]

    async def until(self, claim: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Wait until something is so; nothing would tell of it."""
        async with asyncio.timeout(within_s):
            while not claim():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def quiesce(self) -> None:
        """The oracle: nothing is left, and the gateway still answers."""
        scheduler = self.gateway.scheduler
        await self.until(lambda: self.gateway.driver.in_flight == 0)
        assert scheduler.waiting == scheduler.running == 0
        for load in scheduler.fleet.loads.values():
            assert load.in_flight == 0
            assert load.reserved_tokens == 0
            assert load.backlog_s == 0
        await self.until(lambda: all(engine.running == 0 for engine in self.engines))
        for engine in self.engines:
            engine.script = plain
        if self.canary:
            # On a connection of its own: one that has been idle may be closed as it is used.
            async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
                canary = await replace(self, session=session).post(chat("canary"))
            assert canary.status == 200, canary.body
        metrics = await self.request("GET", "/metrics")
        assert b"hexsage_requests_in_flight 0.0" in metrics.body
        await self.until(lambda: not _tasks_of_requests())


def _tasks_of_requests() -> list[str]:
    """Name the tasks that serve a request or watch its client."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    # A compiled one has no name but its type's.
    names = [getattr(one, "__qualname__", type(one).__name__) for one in coroutines]
    return [name for name in names if name.removesuffix("_gen") in _OF_REQUESTS]


_OF_REQUESTS = {
    *("Cycle.run_asgi", "run_asgi_Cycle"),
    *("client_present._watch", "_watch_client_present"),
}


class _Overheard(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.errors: list[str] = []
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        said = self.format(record)
        self.text += said + "\n"
        if record.levelno >= logging.ERROR:
            self.errors.append(said)


@contextmanager
def overhearing() -> Iterator[_Overheard]:
    """Listen to every logger, asyncio's complaints about forgotten exceptions included."""
    root, ear = logging.getLogger(), _Overheard()
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.INFO)
    try:
        yield ear
    finally:
        root.setLevel(level)
        root.removeHandler(ear)


class Wire:
    """A client's raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read_until(self, mark: bytes) -> bytes:
        """Read up to and with `mark`."""
        async with asyncio.timeout(5):
            return await self.reader.readuntil(mark)

    async def read_all(self) -> bytes:
        """Read until the gateway closes."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    def reset(self) -> None:
        """Leave with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """Leave with a FIN."""
        self.writer.close()


def settings_for(*engines: FakeBackend, **settings: object) -> Settings:
    """Settings of a gateway for these engines."""
    backends = [
        {"name": f"e{number}", "url": engine.url, "gpu": "A100-80G"}
        for number, engine in enumerate(engines)
    ]
    chosen: Json = {
        "policy": {"name": "round_robin+fcfs"},
        "health": {"interval_s": 0.2, "timeout_s": 2.0},
        **settings,
    }
    given = chosen.get("backends")
    if isinstance(given, list):
        chosen["backends"] = [{**a, **b} for a, b in zip(backends, given, strict=True)]
    else:
        chosen["backends"] = backends
    return Settings.model_validate(chosen)


def built(*engines: FakeBackend, **settings: object) -> Gateway:
    """Build a gateway for these engines."""
    return Gateway(
        settings_for(*engines, **settings),
        predictor=LengthPredictor(PredictorSettings(is_semantic=False)),
    )


@asynccontextmanager
async def a_gateway(*engines: FakeBackend, **settings: object) -> AsyncIterator[Running]:
    """Run a gateway in front of these engines; afterwards the oracle is asked."""
    gateway = built(*engines, **settings)
    files = _open_files()
    with overhearing() as ear:
        async with (
            serving(gateway) as port,
            aiohttp.ClientSession(auto_decompress=True) as session,
        ):
            running = Running(gateway, engines, session, port, files=files)
            yield running
            await running.quiesce()
            for wire in running.wires:
                wire.close()
        assert ear.errors == []
        assert "secret" not in ear.text
    # Sockets above all: what was opened for requests is closed when nobody is served any more.
    await running.until(lambda: _open_files() <= running.files)


def _open_files() -> int:
    """Count this process's open files, sockets included, where the system tells."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def serving(gateway: Gateway) -> AbstractAsyncContextManager[int]:
    """Serve a gateway on a free port."""
    return serving_app(gateway.app)


def serving_app(
    app: ASGIApp,
    path: Path | None = None,
    *,
    http: type[asyncio.Protocol] | None = None,
    timeout_keep_alive: int = 5,
) -> AbstractAsyncContextManager[int]:
    """Serve an application on a free port, or at a Unix socket."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        uds=None if path is None else str(path),
        http=http or guarded(),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_keep_alive=timeout_keep_alive,
        timeout_graceful_shutdown=1,
    )
    return serving_as(config)


@asynccontextmanager
async def serving_as(config: uvicorn.Config) -> AsyncIterator[int]:
    """Serve as a configuration says; give out the port, 0 for a Unix socket."""
    # What `Server.serve` does, less its signals and its loop, which looks up ten times a second.
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    await server.on_tick(0)
    try:
        address = server.servers[0].sockets[0].getsockname()
        yield address[1] if config.uds is None else 0
    finally:
        await server.shutdown()
