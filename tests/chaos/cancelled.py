"""Clients that leave at random moments, by the ten thousand: nothing is left of their calls.

    python -m tests.chaos.cancelled --calls 50000

They leave as they queue, while the engine works, or in mid-stream. Light engines.
"""

import argparse
import asyncio
from pathlib import Path
from random import Random

from tests.chaos import books
from tests.chaos.clients import Clients, in_a_circle, session
from tests.chaos.figures import Figure
from tests.chaos.processes import CALL_S, Plan, a_fleet
from tests.chaos.run import Size
from tests.chaos.scripts import flags, report

ENGINES, SLOTS = 4, 12
WORKERS = 100
"""Twice what is served at once: half of them wait."""
WARM_UP = 20_000
"""Calls after which what a gateway remembers is full, up to its bounds."""
MORE_MEMORY = 0.05
NOISE_BYTES = 8 * 1024 * 1024
CANARY_S = 1.0


async def cancelled(folder: Path, options: argparse.Namespace) -> Figure:
    """Send so many calls and leave; return what was seen."""
    wanted: int = options.calls
    plan = Plan.light(options.port, ENGINES, SLOTS, settings={"decisions": False})
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        random, clients = Random(options.seed), Clients(http, fleet.url)
        left = 0

        async def leave() -> None:
            nonlocal left
            told = await clients.call(
                stream=random.random() < 0.6,
                max_tokens=80,
                leaves_after_s=random.uniform(0.0, 1.5 * CALL_S),
            )
            left += told.outcome == "left"
            clients.told.clear()

        async def until(count: int) -> None:
            while left < count:
                await in_a_circle(WORKERS, 5.0, leave)

        await until(min(WARM_UP, wanted))
        before = await Size.of(fleet, http)
        left = 0
        await until(wanted)
        after = await Size.of(fleet, http)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        canary = await clients.call(stream=False, max_tokens=4)
        canary_s = loop.time() - asked_at
        async with http.get(f"{fleet.url}/metrics") as reply:
            metrics = await reply.text()
    figure = Figure(f"{left} calls left by their clients at random moments")
    figure.note("by what the gateway counted", dict(books.counted(metrics)))
    figure.none_of("gauges that are not back to 0", books.left_over(metrics))
    limit = before.memory_bytes * (1 + MORE_MEMORY) + NOISE_BYTES
    seen = f"{before.memory_bytes / 1e6:.0f} -> {after.memory_bytes / 1e6:.0f} MB"
    figure.claim("memory as before", after.memory_bytes <= limit, seen)
    seen = f"{before.files} -> {after.files}"
    figure.claim("open files as before", after.files <= before.files + 2, seen)
    seen = f"{before.tasks:g} -> {after.tasks:g}"
    figure.claim("tasks as before", after.tasks <= before.tasks, seen)
    fine = canary.outcome == "completed" and canary_s < CANARY_S
    figure.claim("canary answers", fine, f"{canary_s:.3f} s")
    return figure


if __name__ == "__main__":
    report(cancelled, flags(__doc__, {"--calls": 50_000}))
