"""Processes of a chaos run: engines, fault proxies and a gateway, on ports in a row."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp
import yaml

from gateway.keys_file import KeyEntry, hash_of, write_keys
from tests.chaos.proxy import Proxy

READY_WITHIN_S = 90.0
STEP_S, TOKENS = 0.010, 40
"""Of light engines: seconds a token, unless said otherwise; tokens of an answer, in the mean."""
CALL_S = STEP_S * TOKENS
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Child:
    """One Python process that can be killed and started again."""

    words: Sequence[str]
    """What follows `python -m`."""
    log: Path
    process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The number of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it; it is not ready when this returns."""
        environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self.words, stdout=log, stderr=log, env=environment
            )

    async def end(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its end."""
        assert self.process is not None
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(sig)
        return await self.process.wait()

    def tell(self, sig: signal.Signals) -> None:
        """Signal it and go on."""
        assert self.process is not None
        self.process.send_signal(sig)

    def resident_bytes(self) -> int:
        """Its memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def open_files(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        """Processor seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A fleet to be started. Ports: the gateway's, then the engines', then the proxies'."""

    port: int
    engines: Sequence[Sequence[str]]
    """What each is started as, after `python -m`; its port is added."""
    gpus: Sequence[str]
    settings: Mapping[str, object] = field(default_factory=dict)
    backend: Mapping[str, object] = field(default_factory=dict)
    """What each backend's entry says besides its name, URL and GPU."""
    tenants: Sequence[str] = ()
    """With a key each; none: everybody is anonymous."""
    has_proxies: bool = False

    @classmethod
    def light(
        cls, port: int, engines: int, slots: int, step_s: float = STEP_S, **rest: object
    ) -> "Plan":
        """Plan light engines that take so many calls at once, and no more are sent to them."""
        words = (
            "tests.chaos.light_engine",
            "--slots",
            str(slots),
            "--step-ms",
            f"{step_s * 1000:g}",
        )
        backend = {"max_in_flight": slots}
        return cls(
            port=port,
            engines=[(*words, "--tokens", str(TOKENS))] * engines,
            gpus=["A100-80G"] * engines,
            backend=backend,
            **rest,  # type: ignore[arg-type]
        )

    @classmethod
    def emulated(
        cls, port: int, gpus: Sequence[str], speed: float, more: Sequence[str] = (), **rest: object
    ) -> "Plan":
        """Plan emulated engines, each a process of its own."""
        words = [
            ("gateway", "emulate", "--gpu", gpu, "--speed", f"{speed:g}", *more) for gpu in gpus
        ]
        return cls(port=port, engines=words, gpus=gpus, **rest)  # type: ignore[arg-type]


@dataclass
class Fleet:
    """What runs."""

    url: str
    gateway: Child
    engines: list[Child]
    proxies: list[Proxy]
    keys: Mapping[str, str]
    """By tenant."""
    config: Path
    content: dict[str, object]
    """What the configuration says, for those who write it anew."""
    decisions: Path

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until every backend is up."""
        backends: list[dict[str, object]] = []
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                while True:
                    with suppress(aiohttp.ClientError):
                        async with http.get(f"{self.url}/admin/backends") as reply:
                            backends = (await reply.json())["backends"]
                        if [b["state"] for b in backends] == ["up"] * len(self.engines):
                            return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(log.read_text()[-2000:] for log in self.config.parent.glob("*.log"))
            raise AssertionError(f"not all are up: {backends}\n{logs}") from None

    async def answers(self, http: aiohttp.ClientSession, number: int) -> None:
        """Wait until an engine that was started anew does."""
        words = self.engines[number].words
        url = f"http://127.0.0.1:{words[words.index('--port') + 1]}/health"
        async with asyncio.timeout(READY_WITHIN_S):
            while True:
                with suppress(aiohttp.ClientError):
                    async with http.get(url):
                        return
                await asyncio.sleep(0.05)

    async def quiet(self, http: aiohttp.ClientSession, within_s: float) -> str:
        """Wait until nothing waits or runs; return the metrics then, or after `within_s`."""
        ends_at = perf_counter() + within_s
        while True:
            async with http.get(f"{self.url}/metrics") as reply:
                text = await reply.text()
            idle = all(
                f"hexsage_requests_{what} 0.0" in text for what in ("queued", "in_flight")
            ) and ("hexsage_workflows_open 0.0" in text)
            if idle or perf_counter() > ends_at:
                return text
            await asyncio.sleep(0.2)


@asynccontextmanager
async def a_fleet(folder: Path, plan: Plan) -> AsyncIterator[Fleet]:
    """Run it all; at the end everything is stopped, the gateway first and in order."""
    count = len(plan.engines)
    engines, proxies, backends = [], [], []
    for number, (words, gpu) in enumerate(zip(plan.engines, plan.gpus, strict=True), start=1):
        port = plan.port + number
        engines.append(Child([*words, "--port", str(port)], folder / f"engine{number}.log"))
        if plan.has_proxies:
            proxies.append(Proxy(port + count, port))
            port += count
        url = f"http://127.0.0.1:{port}"
        backends.append({"name": f"e{number}", "url": url, "gpu": gpu, **plan.backend})
    keys = {tenant: f"hsk-{tenant}" for tenant in plan.tenants}
    decisions, config = folder / "decisions.jsonl", folder / "backends.yaml"
    content: dict[str, object] = {
        "port": plan.port,
        "backends": backends,
        "tuner": {"enabled": False},
        "log": {"level": "warning"},
        **plan.settings,
    }
    if keys:
        entries = [KeyEntry(name=name, sha256=hash_of(key)) for name, key in keys.items()]
        write_keys(folder / "keys.yaml", entries)
        content["keys_file"] = str(folder / "keys.yaml")
    if content.pop("decisions", True):
        content["decision_log"] = str(decisions)
    config.write_text(yaml.safe_dump(content))
    gateway = Child(["gateway", "serve", "--config", str(config)], folder / "gateway.log")
    fleet = Fleet(
        url=f"http://127.0.0.1:{plan.port}",
        gateway=gateway,
        engines=engines,
        proxies=proxies,
        keys=keys,
        config=config,
        content=content,
        decisions=decisions,
    )
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.end, signal.SIGKILL)
        for proxy in proxies:
            await stack.enter_async_context(proxy)
        await gateway.start()
        stack.push_async_callback(gateway.end)
        yield fleet
