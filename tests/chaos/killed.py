"""One engine of four is killed under full load, and comes back.

    python -m tests.chaos.killed --seconds 20

Clients that never rest keep the fleet full. Phases: four engines; three, the fourth drained; four;
one killed (-9); it is back. Light engines.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.chaos.clients import Clients, Told, in_a_circle, session
from tests.chaos.figures import Figure
from tests.chaos.processes import Plan, a_fleet
from tests.chaos.scripts import flags, report

ENGINES, SLOTS = 4, 12
VICTIM = 3
COOLDOWN_S = 5.0
"""`health.cooldown_s` as it is by default."""
FIRST_S = 1.0
ERROR_SHARE, WITHIN = 0.001, 0.10


async def killed(folder: Path, options: argparse.Namespace) -> Figure:
    """Run the phases; return what was seen."""
    seconds: float = options.seconds
    plan = Plan.light(options.port, ENGINES, SLOTS, settings={"decisions": False})
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        loop, random = asyncio.get_running_loop(), Random(options.seed)
        clients = Clients(http, fleet.url)
        began_at: dict[str, float] = {}

        async def phase(name: str, lasts_s: float = seconds) -> None:
            began_at[name] = loop.time()
            await asyncio.sleep(lasts_s)

        async def script() -> None:
            drain = f"{fleet.url}/admin/backends/e{VICTIM + 1}"
            await phase("warm-up", 5)
            await phase("four")
            async with http.post(f"{drain}/drain"):
                await phase("draining", 2)
            await phase("three")
            async with http.post(f"{drain}/undrain"):
                await phase("filling", 2)
            await phase("four again")
            await fleet.engines[VICTIM].end(signal.SIGKILL)
            await phase("killed")
            await fleet.engines[VICTIM].start()
            await fleet.answers(http, VICTIM)
            await phase("returning", 2 * COOLDOWN_S)
            await phase("back")

        workers = ENGINES * SLOTS * 3 // 2
        lasts_s = 9 + 2 * COOLDOWN_S + 5 * seconds + 3
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(script())
            tasks.create_task(
                in_a_circle(
                    workers,
                    lasts_s,
                    lambda: clients.call(stream=random.random() < 0.5, max_tokens=80),
                )
            )
    return _judged(clients.told, began_at, seconds)


def _judged(told: list[Told], began_at: dict[str, float], seconds: float) -> Figure:
    figure = Figure(f"One engine of four killed; phases of {seconds:g} s")

    def rate(name: str, skip_s: float = 0.0) -> float:
        since = began_at[name] + skip_s
        return _completed(told, since, since + seconds - skip_s) / (seconds - skip_s)

    four = (rate("four") + rate("four again")) / 2
    three, dead, back = rate("three"), rate("killed", FIRST_S), rate("back")
    figure.note("four engines, answers a second", f"{four:.1f}")
    figure.note("three engines", f"{three:.1f}")
    figure.claim(
        "three and a dead one: within 10 % of three", dead >= (1 - WITHIN) * three, f"{dead:.1f}"
    )
    figure.claim(
        "two cool-downs after its return: as four", back >= (1 - WITHIN / 2) * four, f"{back:.1f}"
    )
    killed_at = began_at["killed"]
    later = [t for t in told if killed_at + FIRST_S <= t.sent_at < killed_at + seconds]
    bad = [t for t in later if t.outcome != "completed"]
    figure.claim(
        "errors of new calls after the first second <= 0.1 %",
        len(bad) <= ERROR_SHARE * len(later),
        f"{len(bad)} of {len(later)}",
    )
    first = [t for t in told if killed_at - 2 <= t.sent_at < killed_at + FIRST_S]
    broken = sum(t.outcome == "broken" for t in first)
    others = [t.code for t in first if t.outcome not in ("completed", "broken")]
    figure.note("streams that broke as it was killed", broken)
    figure.none_of("other failures as it was killed", others)
    return figure


def _completed(told: Iterable[Told], since: float, until: float) -> int:
    return sum(t.outcome == "completed" and since <= t.ended_at < until for t in told)


if __name__ == "__main__":
    report(killed, flags(__doc__, {"--seconds": 20.0}))
