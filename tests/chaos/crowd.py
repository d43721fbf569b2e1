"""Thousands of connections that are idle, or trickle: what they cost the calls of others.

    python -m tests.chaos.crowd --connections 2000 --seconds 20 --rounds 3

By turns nobody else is connected, or a crowd: half of it says nothing, half sends a request's head
byte by byte. Light engines.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from tests.chaos.clients import Clients, at_rate, quantile, session
from tests.chaos.figures import Figure
from tests.chaos.processes import Fleet, Plan, a_fleet
from tests.chaos.scripts import flags, report

ENGINES, SLOTS = 4, 24
RATE = 60.0
WITHIN = 0.10
TRICKLE_S = 1.0
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-padding: " + b"x" * 1000


async def crowd(folder: Path, options: argparse.Namespace) -> Figure:
    """Take turns; return what was seen."""
    plan = Plan.light(options.port, ENGINES, SLOTS, settings={"decisions": False})
    latencies: dict[str, list[float]] = {"alone": [], "crowd": []}
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        random, clients = Random(options.seed), Clients(http, fleet.url)

        async def load(seconds: float) -> list[float]:
            before = len(clients.told)
            await at_rate(
                RATE, seconds, random, lambda: clients.call(stream=True, max_tokens=10, words=30)
            )
            told = clients.told[before:]
            assert all(t.outcome == "completed" for t in told), {t.code for t in told}
            return [t.ended_at - t.sent_at for t in told]

        await load(5)
        files = []
        for _ in range(options.rounds):
            latencies["alone"] += await load(options.seconds)
            async with a_crowd(fleet, options.connections):
                files.append(fleet.gateway.open_files())
                latencies["crowd"] += await load(options.seconds)
        await asyncio.sleep(6)
        left = fleet.gateway.open_files()
    figure = Figure(f"{options.connections} connections that are idle or trickle")
    figure.note("open files of the gateway with them, and after", f"{max(files)}, {left}")
    for share in (0.5, 0.95):
        alone, among = (quantile(seen, share) for seen in latencies.values())
        seen = f"{alone * 1000:.1f} -> {among * 1000:.1f} ms ({100 * (among / alone - 1):+.1f} %)"
        name = f"P{100 * share:g} of others moves by <= 10 %"
        figure.claim(name, among <= (1 + WITHIN) * alone, seen)
    figure.note("calls alone, among them", [len(seen) for seen in latencies.values()])
    return figure


@asynccontextmanager
async def a_crowd(fleet: Fleet, connections: int) -> AsyncIterator[None]:
    """Be connected so many times."""
    port = int(fleet.url.rpartition(":")[2])
    writers = []
    for _ in range(connections):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
    trickling = asyncio.ensure_future(_trickle(writers[::2]))
    try:
        yield
    finally:
        trickling.cancel()
        for writer in writers:
            writer.transport.abort()


async def _trickle(writers: list[asyncio.StreamWriter]) -> None:
    """Send a byte on every connection now and then, not all at once."""
    for position in range(len(HEAD)):
        for writer in writers:
            with suppress(OSError):
                writer.write(HEAD[position : position + 1])
            await asyncio.sleep(TRICKLE_S / len(writers))


if __name__ == "__main__":
    report(crowd, flags(__doc__, {"--connections": 2000, "--seconds": 20.0, "--rounds": 3}))
