"""Faults: what befalls a fleet, by the seed; two engines at once at most, so that two are well."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import aiohttp
import yaml

from tests.chaos.processes import Fleet
from tests.chaos.proxy import Mode

LASTS_S = (2.0, 6.0)
PAUSE_S = (0.5, 3.0)

Strike = Callable[[int], Awaitable[None]]


class Faults:
    """Strikes one fleet until it is told to stop; then everything is whole again."""

    def __init__(self, fleet: Fleet, http: aiohttp.ClientSession, seed: int) -> None:
        self.struck: Counter[str] = Counter()
        self._fleet = fleet
        self._http = http
        self._random = Random(seed)
        self._victims: set[int] = set()
        self._is_over = asyncio.Event()
        self._strikes: dict[str, Strike] = {"kill -9": self._kill, "stop": self._stop} | {
            mode.value: self._network(mode) for mode in Mode if mode is not Mode.PASS
        }

    async def run(self, seconds: float) -> None:
        """Strike for so long."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._befall())
            tasks.create_task(self._befall())
            tasks.create_task(self._operate())
            await asyncio.sleep(seconds)
            self._is_over.set()

    async def _befall(self) -> None:
        """One thing after the other goes wrong."""
        while not await self._rest(PAUSE_S):
            victim = self._random.choice(
                [n for n in range(len(self._fleet.engines)) if n not in self._victims]
            )
            name = self._random.choice(sorted(self._strikes))
            self._victims.add(victim)
            self.struck[name] += 1
            try:
                await self._strikes[name](victim)
            finally:
                self._victims.discard(victim)

    async def _rest(self, between_s: tuple[float, float]) -> bool:
        """Wait a while; return whether it is over."""
        try:
            async with asyncio.timeout(self._random.uniform(*between_s)):
                await self._is_over.wait()
        except TimeoutError:
            return False
        return True

    async def _kill(self, victim: int) -> None:
        engine = self._fleet.engines[victim]
        await engine.end(signal.SIGKILL)
        await self._rest(LASTS_S)
        await engine.start()
        # It takes a moment to start; till then it is as dead as before.
        await self._fleet.answers(self._http, victim)

    async def _stop(self, victim: int) -> None:
        engine = self._fleet.engines[victim]
        engine.tell(signal.SIGSTOP)
        # Long enough, now and then, to be found out.
        await self._rest((LASTS_S[0], 2.5 * LASTS_S[1]))
        engine.tell(signal.SIGCONT)

    def _network(self, mode: Mode) -> Strike:
        async def strike(victim: int) -> None:
            proxy = self._fleet.proxies[victim]
            proxy.change(mode)
            lasts_s = (LASTS_S[0], 2.5 * LASTS_S[1]) if mode is Mode.BLACKHOLE else LASTS_S
            await self._rest(lasts_s)
            proxy.change(Mode.PASS)

        return strike

    async def _operate(self) -> None:
        """Operators change the configuration, well and badly, and drain backends."""
        acts = {"reload": self._reload, "bad file": self._bad_file, "drain": self._drain}
        while not await self._rest((1.0, 5.0)):
            name = self._random.choice(sorted(acts))
            self.struck[name] += 1
            await acts[name]()
        self._write(self._fleet.content)

    async def _reload(self) -> None:
        timeouts = {"queue_s": self._random.choice([30, 60])}
        self._write({**self._fleet.content, "models": {"m1": {"timeouts": timeouts}}})
        await self._post("/admin/reload", {200})

    async def _bad_file(self) -> None:
        self._fleet.config.write_text("backends: [{name: e1, url: nowhere}]\n")
        await self._post("/admin/reload", {400})
        self._write(self._fleet.content)

    async def _drain(self) -> None:
        name = f"e{self._random.randint(1, len(self._fleet.engines))}"
        await self._post(f"/admin/backends/{name}/drain", {200})
        await self._rest(PAUSE_S)
        await self._post(f"/admin/backends/{name}/undrain", {200})

    def _write(self, content: dict[str, object]) -> None:
        self._fleet.config.write_text(yaml.safe_dump(content))

    async def _post(self, path: str, expected: set[int]) -> None:
        async with self._http.post(self._fleet.url + path) as reply:
            if reply.status not in expected:
                raise AssertionError(f"{path}: {reply.status} {await reply.text()}")
