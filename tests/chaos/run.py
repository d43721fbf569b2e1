"""Kill, stop and restart engines under load, and count on both sides what became of every call.

    python -m tests.chaos.run --seconds 60 --rate 20 --seed 1

Every engine is a process of its own. In each period one of them, drawn by the seed, is killed (-9)
or stopped (SIGSTOP) for a while. Printed: outcomes as clients and as the gateway count them, and
what is left afterwards. Exit code 0: the counts agree, nothing is left, the canary answers at once.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

import aiohttp

GPUS = ("A100-80G", "A6000", "L40S", "A100-80G")
PERIOD_S = 8.0
OUTAGE_S = 4.0


@dataclass
class Child:
    """One process that can be killed and started again."""

    words: Sequence[str]
    log: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway", *self.words, stdout=log, stderr=log
            )

    async def end(self, sig: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(sig)
        return await self.process.wait()

    def tell(self, sig: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sig)


@dataclass
class Seen:
    """What clients saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)


async def main(options: argparse.Namespace) -> int:
    """Run it all; return the exit code."""
    random = Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        async with a_fleet(Path(folder), options.port) as engines, aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{options.port}"
            await ready(http, url)
            seen = Seen()
            ends_at = perf_counter() + options.seconds
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(strike(engines, random, options.seconds))
                while perf_counter() < ends_at:
                    tasks.create_task(call(http, url, seen, stream=random.random() < 0.5))
                    await asyncio.sleep(random.expovariate(options.rate))
            return await judge(http, url, seen)


@asynccontextmanager
async def a_fleet(folder: Path, port: int) -> AsyncIterator[list[Child]]:
    """Run the engines and, before them, the gateway on `port`; engines take the ports after it."""
    engines = []
    lines = [f"port: {port}", "health: {interval_s: 1, cooldown_s: 2, ramp_s: 4}", "backends:"]
    for number, gpu in enumerate(GPUS, start=1):
        words = ["emulate", "--gpu", gpu, "--port", str(port + number), "--speed", "20"]
        engines.append(Child(words, folder / f"engine{number}.log"))
        lines.append(f"- {{name: e{number}, url: 'http://127.0.0.1:{port + number}', gpu: {gpu}}}")
    lines.append("timeouts: {first_token_s: 10, inter_token_s: 5, total_s: 60}")
    config = folder / "backends.yaml"
    config.write_text("\n".join(lines) + "\n")
    gateway = Child(["serve", "--config", str(config)], folder / "gateway.log")
    async with AsyncExitStack() as stack:
        for child in (*engines, gateway):
            await child.start()
            stack.push_async_callback(child.end)
        yield engines


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until everybody is up."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with http.get(f"{url}/admin/backends") as reply:
                    backends = (await reply.json())["backends"]
                if [backend["state"] for backend in backends] == ["up"] * len(GPUS):
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


async def strike(engines: list[Child], random: Random, seconds: float) -> None:
    """Take out one engine after the other, never two at once."""
    ends_at = perf_counter() + seconds
    while perf_counter() + PERIOD_S < ends_at:
        await asyncio.sleep(PERIOD_S - OUTAGE_S)
        victim = random.choice(engines)
        if random.random() < 0.5:
            await victim.end(signal.SIGKILL)
            await asyncio.sleep(OUTAGE_S)
            await victim.start()
        else:
            victim.tell(signal.SIGSTOP)
            await asyncio.sleep(OUTAGE_S)
            victim.tell(signal.SIGCONT)


async def call(http: aiohttp.ClientSession, url: str, seen: Seen, *, stream: bool) -> None:
    """Send one call and note what became of it."""
    message = {"role": "user", "content": "how many ships sailed in May? " * 20}
    body = {"model": "m1", "messages": [message], "max_tokens": 128, "stream": stream}
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
            told = await reply.read()
    except aiohttp.ClientError as lost:
        seen.outcomes["lost"] += 1
        seen.codes[type(lost).__name__] += 1
        return
    broken = re.search(rb'^data: (\{"error".*)$', told, re.MULTILINE)
    if reply.status == 200 and broken is None:
        seen.outcomes["completed"] += 1
        return
    error = json.loads(broken[1] if broken else told)["error"]
    seen.outcomes["failed in its stream" if broken else "failed"] += 1
    seen.codes[str(error["code"])] += 1


async def judge(http: aiohttp.ClientSession, url: str, seen: Seen) -> int:
    """Compare the books, see what is left, and ask the canary."""
    await asyncio.sleep(2)
    async with http.get(f"{url}/metrics") as reply:
        text = await reply.text()
    settled: Counter[str] = Counter()
    for outcome, count in re.findall(
        r'hexsage_requests_total\{.*?outcome="(\w+)".*?\} ([\d.]+)', text
    ):
        settled[outcome] += int(float(count))
    left = re.findall(r"hexsage_requests_(?:queued|in_flight) ([\d.]+)", text)
    began_at = perf_counter()
    await call(http, url, canary := Seen(), stream=False)
    canary_s = perf_counter() - began_at
    agree = sum(settled.values()) == seen.outcomes.total() and (
        settled["completed"] == seen.outcomes["completed"]
    )
    print(f"clients: {dict(seen.outcomes)} {dict(seen.codes)}")  # noqa: T201 - the report
    print(f"gateway: {dict(settled)}; left: {left}; canary {canary_s:.2f} s")  # noqa: T201
    good = agree and set(left) == {"0.0"} and canary.outcomes["completed"] == 1 and canary_s < 1
    print("the books agree" if good else "SOMETHING IS WRONG")  # noqa: T201
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="calls a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8750, help="this one and the four after it")
    sys.exit(asyncio.run(main(parser.parse_args())))
