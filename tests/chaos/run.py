"""Everything goes wrong at once, and every call's fate is compared on both sides, one by one.

    python -m tests.chaos.run --seconds 600 --rate 25 --seed 1

Four emulated engines, each a process behind a fault proxy: kill -9, SIGSTOP, resets, a black hole,
garbage, slowness, a /health that flaps, reloads good and bad, drains. Clients stream or not, alone
or in workflows, as three tenants; some leave at a random moment. Printed: a Markdown table. Exit
code 0: nothing is wrong.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

import aiohttp

from tests.chaos import books
from tests.chaos.clients import Clients, at_rate, in_a_circle, session
from tests.chaos.faults import Faults
from tests.chaos.figures import Figure
from tests.chaos.processes import Fleet, Plan, a_fleet

GPUS = ("A100-80G", "A6000", "L40S", "A100-80G")
TENANTS = ("ada", "ben", "cyd")
SPEED = 20.0
WARM_UP_S = 8.0
WARMING = 48
"""Clients that send the short calls of a warm-up."""
CANARY_S = 1.0
SETTLE_S = 6.0
"""Longer than anybody keeps an idle connection."""
MORE_MEMORY = 0.15
"""Growth of the gateway's memory, beyond `NOISE_BYTES`, that a run may show."""
NOISE_BYTES = 24 * 1024 * 1024
MORE_FILES = 8
SETTINGS: dict[str, object] = {
    "health": {"interval_s": 1, "cooldown_s": 2, "max_cooldown_s": 8, "ramp_s": 4, "stall_s": 2},
    "timeouts": {"connect_s": 2, "first_token_s": 30, "inter_token_s": 8, "total_s": 60},
    "queue": {"timeout_s": 60},
    "watch_s": 0.5,
}


@dataclass(frozen=True)
class Size:
    """What the gateway holds."""

    memory_bytes: int
    files: int
    tasks: float

    @classmethod
    async def of(cls, fleet: Fleet, http: aiohttp.ClientSession) -> "Size":
        """Look, once nobody is served and idle connections are closed."""
        await fleet.quiet(http, within_s=40)
        await asyncio.sleep(SETTLE_S)
        metrics = await fleet.quiet(http, within_s=1)
        gateway = fleet.gateway
        tasks = books.gauge(metrics, "hexsage_tasks")
        return cls(gateway.resident_bytes(), gateway.open_files(), tasks)


async def main(options: argparse.Namespace) -> int:
    """Run it all; return the exit code."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        figure = await chaos(
            folder,
            options.port,
            options.seconds,
            options.rate,
            options.seed,
            workers=options.workers,
            warm_up=options.warm_up,
        )
    print(figure.markdown())  # noqa: T201 - the report
    return 1 if figure.wrong else 0


async def chaos(
    folder: Path,
    port: int,
    seconds: float,
    rate: float,
    seed: int,
    workers: int = 1,
    warm_up: int = 0,
) -> Figure:
    """Let everything befall a fleet; return what was seen.

    Before the gateway is weighed it answers so many short calls of a few tokens: enough of them
    fill what it remembers, up to its bounds.
    """
    plan = Plan.emulated(
        port,
        GPUS,
        SPEED,
        settings={**SETTINGS, "workers": workers},
        tenants=TENANTS,
        has_proxies=True,
    )
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        clients = Clients(http, fleet.url)
        random = Random(seed)
        key = fleet.keys[TENANTS[0]]
        while len(clients.told) < warm_up:
            await in_a_circle(
                WARMING, 1.0, lambda: clients.call(stream=False, key=key, max_tokens=2)
            )
        await at_rate(rate, WARM_UP_S, random, lambda: one(clients, fleet, random))
        before = await Size.of(fleet, http)
        faults = Faults(fleet, http, seed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(faults.run(seconds))
            tasks.create_task(at_rate(rate, seconds, random, lambda: one(clients, fleet, random)))
        await fleet.ready(http)
        await fleet.quiet(http, within_s=30)
        canary_s = await canary(clients, fleet)
        after = await Size.of(fleet, http)
        async with http.get(f"{fleet.url}/metrics") as reply:
            metrics = await reply.text()
    attempts = [attempt for proxy in fleet.proxies for attempt in proxy.attempts]
    settled = books.settlements(fleet.decisions)
    figure = Figure(
        f"Chaos for {seconds:g} s, {rate:g} starts a second, seed {seed}, {workers} worker(s)"
    )
    figure.note("faults", dict(sorted(faults.struck.items())))
    outcomes = Counter(told.outcome for told in clients.told)
    figure.note("calls by what clients saw", dict(sorted(outcomes.items())))
    by_gateway = books.counted(metrics)
    figure.note("calls by what the gateway counted", dict(sorted(by_gateway.items())))
    written = Counter(str(s["outcome"]) for entries in settled.values() for s in entries)
    figure.claim("metrics and decision log agree", by_gateway == written, f"{dict(written)}")
    figure.none_of(
        "calls that client and gateway do not tell alike",
        books.disagreements(clients.told, settled),
    )
    figure.none_of("calls lost", [t.code for t in clients.told if t.outcome == "lost"])
    figure.none_of("calls sent again after a byte", books.run_after_a_byte(clients.told, attempts))
    figure.none_of("upstream ids used twice", books.twice_the_same(attempts))
    needless = books.needless_failures(clients.told)
    figure.none_of(
        "failed before the first byte, with another engine well",
        [f"{t.name} {t.outcome} {t.status} {t.code}" for t in needless],
    )
    figure.none_of("gauges that are not back to 0", books.left_over(metrics))
    figure.claim("canary answers", canary_s < CANARY_S, f"{canary_s:.2f} s")
    grown = after.memory_bytes - before.memory_bytes
    figure.claim(
        "memory as before",
        grown <= NOISE_BYTES + MORE_MEMORY * before.memory_bytes,
        f"{before.memory_bytes / 1e6:.0f} -> {after.memory_bytes / 1e6:.0f} MB",
    )
    figure.claim(
        "open files as before",
        after.files <= before.files + MORE_FILES,
        f"{before.files} -> {after.files}",
    )
    figure.claim(
        "tasks as before", after.tasks <= before.tasks, f"{before.tasks:g} -> {after.tasks:g}"
    )
    figure.note("attempts that reached an engine", len(attempts))
    tracebacks = (folder / "gateway.log").read_text().count("Traceback")
    figure.claim("no traceback in the log", tracebacks == 0, str(tracebacks))
    return figure


async def one(clients: Clients, fleet: Fleet, random: Random) -> None:
    """One client does what one of its kind does."""
    key = fleet.keys[random.choice(TENANTS)]
    if random.random() < 0.15:
        await clients.workflow(random, key)
        return
    await clients.call(
        stream=random.random() < 0.6,
        key=key,
        words=random.choice([10, 10, 100, 600]),
        max_tokens=random.choice([8, 64, 64, 256]),
        leaves_after_s=random.uniform(0, 1.5) if random.random() < 0.15 else None,
    )


async def canary(clients: Clients, fleet: Fleet) -> float:
    """Return how long a small call takes, in seconds; infinite if it fails."""
    began_at = perf_counter()
    told = await clients.call(stream=False, key=fleet.keys[TENANTS[0]], max_tokens=4)
    return perf_counter() - began_at if told.outcome == "completed" else float("inf")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="calls or workflows a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=0, help="short calls before it begins")
    parser.add_argument("--port", type=int, default=25000, help="this one and the eight after it")
    parser.add_argument("--workers", type=int, default=1, help="of the gateway")
    parser.add_argument("--keep", type=Path, help="an empty folder for logs and decisions")
    sys.exit(asyncio.run(main(parser.parse_args())))
