"""`hexsage serve --workers N` as processes: deaths, signals, reloads, TLS."""

import asyncio
import fcntl
import json
import os
import signal
import sys
import termios
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import aiohttp
import pytest

from gateway.config.settings import Settings
from gateway.workers.launch import BEATS, READY
from gateway.workers.parent import Parent
from gateway.workers.sockets import port_of, reserve, shared
from tests.api.harness import Wire, chat
from tests.backends.fake_backend import (
    Exchange,
    FakeBackend,
    Script,
    a_fake_backend,
    frame,
    plain,
)
from tests.cli import test_serve
from tests.cli.test_serve import certificates  # noqa: F401 - a fixture
from tests.e2e.processes import free_port

WITHIN_S = 30.0
HANG_S = 2.0
Claim = Callable[[], Awaitable[bool]]
DONE = b"data: [DONE]\n\n"

# What one process does, several do: TLS, a port for admin, reloads, grace, memory over a kill -9.


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have gateways of those tests run with workers."""
    alone = test_serve.a_gateway

    def with_workers(path: Path) -> AbstractContextManager[Popen[bytes]]:
        return alone(path, "--workers", "2")

    monkeypatch.setattr(test_serve, "a_gateway", with_workers)


NOT_ALIKE = (
    # Calls that come by two workers come in no order, and when one worker's time is over, another
    # one may still give its place to a call that waits. Their like stands below.
    test_serve.test_it_stops_being_ready_before_it_closes_its_door_and_ends_what_it_has,
    test_serve.test_what_cannot_be_done_in_time_is_told_when_to_come_again,
)

globals().update(
    {
        f"test_serve_{name}": value
        for name, value in vars(test_serve).items()
        if name.startswith("test_") and value not in NOT_ALIKE
    }
)


# Deaths


@dataclass
class Tree:
    """A gateway of several processes."""

    process: asyncio.subprocess.Process
    port: int
    log: Path
    session: aiohttp.ClientSession
    wires: list[Wire] = field(default_factory=list)

    def children(self, role: str) -> list[int]:
        """The processes of a role."""
        return [pid for pid in _children(self.process.pid) if _words(pid)[-1:] == [role]]

    async def said(self, words: str, times: int) -> bool:
        """Return whether its processes have logged something so often."""
        return self.log.read_text().count(words) >= times

    async def until(self, claim: Claim, within_s: float = WITHIN_S) -> None:
        """Wait until something is so; nothing would tell of it."""
        try:
            async with asyncio.timeout(within_s):
                while not await claim():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(self.log.read_text()) from None

    async def get(self, path: str) -> tuple[int, str]:
        """Ask for something, over a connection of its own; status 0: nobody answers."""
        try:
            async with self.session.get(f"http://127.0.0.1:{self.port}{path}") as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def is_ready(self) -> bool:
        """It serves."""
        return (await self.get("/readyz"))[0] == 200

    async def shows(self, line: str) -> bool:
        """Its metrics have this line."""
        return line in (await self.get("/metrics"))[1].splitlines()

    async def sums_up(self, name: str, least: float) -> bool:
        """All workers together have at least this much of something."""
        lines = (await self.get("/metrics"))[1].splitlines()
        found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"hexsage_{name}{{")]
        return sum(map(float, found)) >= least

    async def call(self, model: str | None = None) -> tuple[int, str | None, bytes]:
        """Make a call over a connection of its own; return status, Retry-After and body."""
        asked = {**chat(), **({"model": model} if model else {})}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        async with self.session.post(url, json=asked) as response:
            return response.status, response.headers.get("retry-after"), await response.read()

    async def stream(self) -> Wire:
        """Begin a streamed call."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps(chat(stream=True)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.wires.append(Wire(reader, writer))
        return self.wires[-1]


def _children(parent: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == parent:
                yield int(name)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


@asynccontextmanager
async def a_tree(
    tmp_path: Path, *engines: FakeBackend, workers: int = 2, **settings: object
) -> AsyncIterator[Tree]:
    """Run a gateway of several processes; it must stop by itself and leave nobody behind."""
    port = free_port()
    backends = [{"name": f"e{n}", "url": engine.url} for n, engine in enumerate(engines)]
    given = {"backends": backends, "port": port, "workers": workers, **settings}
    path, log = tmp_path / "b.yaml", tmp_path / "log"
    path.write_text(json.dumps(given))
    words = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *words, stdout=output, stderr=output, env=environment
        )
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        tree = Tree(process, port, log, session)
        try:
            await tree.until(tree.is_ready)
            # Whoever listens first would get all the first connections.
            await tree.until(lambda: tree.said("Application startup complete", 1 + workers))
            yield tree
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WITHIN_S):
                assert await process.wait() in (0, -signal.SIGKILL)
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise
        finally:
            for wire in tree.wires:
                wire.close()


def two_frames(go: asyncio.Event) -> Script:
    """Stream a frame; the rest when it is time."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(frame("a"))
        while not go.is_set():
            await exchange.pause(0.01)
        await exchange.chunk(frame("b", "stop") + DONE)
        await exchange.end_stream()

    return script


DIES_OR_HANGS = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])


@DIES_OR_HANGS
@pytest.mark.anyio
async def test_when_a_worker_dies_or_hangs_nothing_of_its_calls_stays_and_others_are_untouched(
    tmp_path: Path, how: signal.Signals
) -> None:
    go = asyncio.Event()
    async with (
        a_fake_backend(two_frames(go)) as engine,
        a_tree(tmp_path, engine, policy={"name": "round_robin+fcfs"}, hang_s=HANG_S) as tree,
    ):
        streams = [await tree.stream() for _ in range(16)]
        for stream in streams:
            await stream.read_until(frame("a"))
        assert await tree.shows("hexsage_requests_in_flight 16.0")
        await tree.until(lambda: tree.sums_up("worker_connections", 16))
        assert await tree.sums_up("worker_requests_in_flight", 16)
        assert await tree.sums_up("worker_up", 2)
        assert not await tree.sums_up("worker_restarts_total", 1)
        workers = tree.children("worker")
        assert len(workers) == 2

        rests = [asyncio.ensure_future(stream.reader.readuntil(DONE)) for stream in streams]

        os.kill(workers[0], how)

        async def is_abandoned() -> bool:
            broken = sum(rest.done() for rest in rests)
            return 0 < broken < 16 and await tree.shows(
                f"hexsage_requests_in_flight {16 - broken}.0"
            )

        await tree.until(is_abandoned)
        broken = sum(rest.done() for rest in rests)
        assert await tree.shows(
            f'hexsage_requests_total{{model="m1",outcome="abandoned",reason=""}} {broken}.0'
        )

        async def is_left() -> bool:
            return engine.running == 16 - broken

        await tree.until(is_left)  # the engine's calls have ended with the worker's connections
        go.set()
        ends = await asyncio.gather(*rests, return_exceptions=True)
        assert sum(isinstance(end, asyncio.IncompleteReadError) for end in ends) == broken
        assert sum(isinstance(end, bytes) for end in ends) == 16 - broken
        await _has_come_back(tree, set(workers))
        engine.script = plain
        assert [(await tree.call())[0] for _ in range(8)] == [200] * 8
        assert await tree.shows("hexsage_requests_in_flight 0.0")
        assert await tree.shows("hexsage_requests_queued 0.0")
        await tree.until(lambda: tree.sums_up("worker_up", 2))
        assert await tree.sums_up("worker_restarts_total", 1)
        assert await tree.sums_up("worker_resident_memory_bytes", 2 * 20 << 20)


async def _has_come_back(tree: Tree, before: set[int]) -> None:
    """Wait until another worker serves in the place of the one that was killed."""

    async def are_two() -> bool:
        now = tree.children("worker")
        return len(now) == 2 and set(now) != before

    await tree.until(are_two)


@DIES_OR_HANGS
@pytest.mark.anyio
async def test_while_the_scheduler_process_is_away_calls_are_told_to_come_back(
    tmp_path: Path, how: signal.Signals
) -> None:
    go = asyncio.Event()
    async with (
        a_fake_backend(two_frames(go)) as engine,
        a_tree(tmp_path, engine, hang_s=HANG_S) as tree,
    ):
        stream = await tree.stream()
        await stream.read_until(frame("a"))
        (scheduler,) = tree.children("scheduler")

        os.kill(scheduler, how)

        async def is_away() -> bool:
            status, retry_after, body = await tree.call()
            return (status, retry_after) == (503, "1") and b"scheduler_restarting" in body

        engine.script = plain
        await tree.until(is_away)
        assert (await tree.get("/healthz"))[0] == 200
        assert (await tree.get("/readyz"))[0] == 503
        go.set()
        assert (await stream.read_until(DONE)).count(b"data:") == 2

        await tree.until(tree.is_ready)

        async def answers() -> bool:
            return [(await tree.call())[0] for _ in range(8)] == [200] * 8

        await tree.until(answers)
        assert tree.children("scheduler") != [scheduler]
        assert await tree.shows("hexsage_requests_in_flight 0.0")


@pytest.mark.anyio
async def test_a_parent_that_was_stopped_itself_takes_nobody_for_hung(tmp_path: Path) -> None:
    async with a_fake_backend(plain) as engine, a_tree(tmp_path, engine, hang_s=1) as tree:
        children = [*tree.children("worker"), *tree.children("scheduler")]
        beat = len(READY)

        async def nobody_has_heard() -> bool:
            return all(_unread_bytes(pid) >= 2 * BEATS * beat for pid in children)

        async def all_are_heard() -> bool:
            return all(_unread_bytes(pid) <= beat for pid in children)

        tree.process.send_signal(signal.SIGSTOP)
        await tree.until(nobody_has_heard)
        tree.process.send_signal(signal.SIGCONT)
        await tree.until(all_are_heard)

        assert (await tree.call())[0] == 200
        assert [*tree.children("worker"), *tree.children("scheduler")] == children
        assert not await tree.said("no sign of life", 1)


def _unread_bytes(pid: int) -> int:
    """Return how much of a process's output nobody has read yet."""
    pipe = os.open(f"/proc/{pid}/fd/1", os.O_RDONLY | os.O_NONBLOCK)
    try:
        count = array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, count)
        return count[0]
    finally:
        os.close(pipe)


@pytest.mark.anyio
async def test_what_is_read_anew_holds_for_all_workers(tmp_path: Path) -> None:
    async with a_fake_backend(plain) as engine, a_tree(tmp_path, engine, workers=3) as tree:
        assert {(await tree.call("alias"))[0] for _ in range(12)} == {404}
        path = tmp_path / "b.yaml"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "models": {"alias": {"target": "m1"}}}))

        tree.process.send_signal(signal.SIGHUP)

        async def all_know() -> bool:
            return {(await tree.call("alias"))[0] for _ in range(24)} == {200}

        await tree.until(all_know)


@pytest.mark.anyio
async def test_it_is_not_ready_then_takes_nothing_new_then_ends_what_it_has(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    async with (
        a_fake_backend(two_frames(go)) as engine,
        a_tree(tmp_path, engine, drain_grace_s=3) as tree,
    ):
        streams = [await tree.stream() for _ in range(4)]
        for stream in streams:
            await stream.read_until(frame("a"))
        tree.process.send_signal(signal.SIGTERM)

        async def is_not_ready() -> bool:
            return (await tree.get("/readyz"))[0] == 503

        await tree.until(is_not_ready)
        late = await tree.stream()
        await late.read_until(frame("a"))

        async def is_refused() -> bool:
            return await tree.get("/readyz") == (0, "")

        await tree.until(is_refused)
        go.set()
        for stream in (*streams, late):
            assert (await stream.read_until(DONE)).count(b"data:") == 2
        async with asyncio.timeout(WITHIN_S):
            assert await tree.process.wait() == 0


@pytest.mark.anyio
async def test_what_cannot_be_done_in_time_is_told_to_come_again(tmp_path: Path) -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.pause(WITHIN_S)

    async with (
        a_fake_backend(never) as engine,
        a_tree(tmp_path, engine, drain_timeout_s=1) as tree,
    ):
        calls = [asyncio.ensure_future(tree.call()) for _ in range(6)]

        async def all_run() -> bool:
            return engine.running == 6

        await tree.until(all_run)
        tree.process.send_signal(signal.SIGTERM)

        for status, retry_after, body in await asyncio.gather(*calls):
            assert (status, b"shutting_down" in body) == (503, True)
            assert retry_after is not None


@pytest.mark.anyio
async def test_children_do_not_outlive_their_parent(tmp_path: Path) -> None:
    async with a_fake_backend(plain) as engine, a_tree(tmp_path, engine) as tree:
        children = [*tree.children("worker"), *tree.children("scheduler")]
        assert len(children) == 3

        tree.process.kill()

        async def are_gone() -> bool:
            return not any("gateway.cli.child" in _words(pid) for pid in children)

        await tree.until(are_gone)
        assert await tree.get("/healthz") == (0, "")


@pytest.mark.anyio
async def test_a_worker_that_is_told_to_stop_is_replaced(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with a_fake_backend(two_frames(go)) as engine, a_tree(tmp_path, engine) as tree:
        stream = await tree.stream()
        await stream.read_until(frame("a"))
        workers = tree.children("worker")

        for worker in workers:
            os.kill(worker, signal.SIGTERM)
            os.kill(worker, signal.SIGTERM)

        go.set()
        assert (await stream.read_until(DONE)).count(b"data:") == 2
        await _has_come_back(tree, set(workers))
        os.kill(tree.children("scheduler")[0], signal.SIGTERM)  # that is not for it to heed
        engine.script = plain
        await tree.until(tree.is_ready)
        assert (await tree.call())[0] == 200


@pytest.mark.anyio
async def test_an_address_that_is_taken_is_said_so(tmp_path: Path) -> None:
    async with a_fake_backend(plain) as engine:
        path = tmp_path / "b.yaml"
        given = {"backends": [{"name": "a", "url": engine.url}], "port": engine.port, "workers": 2}
        path.write_text(json.dumps(given))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "serve", "--config", str(path)),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(WITHIN_S):
            said = await process.stderr.read()

        assert await process.wait() == 1
        assert (
            b"port: 127.0.0.1:%d cannot be listened at (Address already in use)" % engine.port
            in said
        )


def test_an_address_that_is_reserved_is_shared_with_children_only() -> None:
    mine = reserve("127.0.0.1", 0)
    port = port_of(mine)
    (child,) = shared("127.0.0.1", port)
    child.listen()

    assert port_of([child]) == port
    with pytest.raises(OSError, match="in use"):
        reserve("127.0.0.1", port)
    for sock in (*mine, child):
        sock.close()


def test_a_child_that_cannot_be_started_is_named(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.model_validate({"port": free_port(), "workers": 2})
    parent = Parent(settings, None, {}, ["/no/such/program"])

    assert asyncio.run(parent.run()) == 1
    assert "scheduler could not be started" in caplog.text
