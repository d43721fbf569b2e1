"""A tenant that asks for twenty times its share: what it costs another one.

    python -m tests.chaos.noisy --seconds 60 --rounds 3

Two tenants of equal weight. The one keeps within its share throughout; the other asks for exactly
its share, or for `--times` as much, by turns. Light engines, slow ones: who comes next waits until
one of 64 places is free, and that is short beside a call.
"""

import argparse
import asyncio
from pathlib import Path
from random import Random

from tests.chaos.clients import Clients, Told, at_rate, quantile, session
from tests.chaos.figures import Figure
from tests.chaos.processes import TOKENS, Plan, a_fleet
from tests.chaos.scripts import flags, report

ENGINES, SLOTS, STEP_S = 4, 16, 0.08
WARM_UP_S = 10.0
OWN = 0.7
"""Of its share that the quiet tenant asks for."""
WITHIN = 0.10
QUIET, NOISY = "quiet", "noisy"


async def noisy(folder: Path, options: argparse.Namespace) -> Figure:
    """Take turns; return what was seen."""
    share = ENGINES * SLOTS / (STEP_S * TOKENS) / 2
    plan = Plan.light(
        options.port,
        ENGINES,
        SLOTS,
        STEP_S,
        tenants=(QUIET, NOISY),
        settings={"queue": {"max_requests": 200, "max_tenant_share": 0.5}, "decisions": False},
    )
    told: dict[float, list[Told]] = {1.0: [], options.times: []}
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        random = Random(options.seed)
        clients = {name: Clients(http, fleet.url, prefix=name) for name in (QUIET, NOISY)}

        async def load(name: str, rate: float, lasts_s: float) -> None:
            await at_rate(
                rate,
                lasts_s,
                random,
                lambda: clients[name].call(
                    stream=random.random() < 0.5, key=fleet.keys[name], max_tokens=80
                ),
            )

        async def turn(times: float, lasts_s: float) -> list[Told]:
            before = len(clients[QUIET].told)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load(NOISY, times * share, lasts_s))
                await asyncio.sleep(2)  # the other's queue fills first
                tasks.create_task(load(QUIET, OWN * share, lasts_s - 2))
            return clients[QUIET].told[before:]

        await turn(1.0, WARM_UP_S)
        for _ in range(options.rounds):
            for times, seen in told.items():
                seen += await turn(times, options.seconds)
    figure = Figure(f"A tenant at {options.times:g} times its share, beside one at {OWN:g} of its")
    by_times = {times: [t.ended_at - t.sent_at for t in seen] for times, seen in told.items()}
    for times, latencies in by_times.items():
        p50, p95 = quantile(latencies, 0.5), quantile(latencies, 0.95)
        name = f"quiet tenant's P50, P95 beside {times:g} shares"
        figure.note(name, f"{p50:.3f}, {p95:.3f} s of {len(latencies)}")
    usual, much = (quantile(latencies, 0.95) for latencies in by_times.values())
    change = f"{100 * (much / usual - 1):+.1f} %"
    figure.claim("its P95 is worse by <= 10 %", much <= (1 + WITHIN) * usual, change)
    bad = [t.code for calls in told.values() for t in calls if t.outcome != "completed"]
    figure.none_of("its calls that were not answered", bad)
    return figure


if __name__ == "__main__":
    report(noisy, flags(__doc__, {"--seconds": 60.0, "--rounds": 3, "--times": 20.0}))
