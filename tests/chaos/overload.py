"""Three times as much work as there is room for: what is done stays done, and refusals are honest.

    python -m tests.chaos.overload --seconds 300

First just enough (1x) for the peak of goodput, then `--times` as much. Goodput: answers complete
within `SLO_S`, a second. A refusal's Retry-After says when the queue of that moment will be gone;
what was true is read from the decision log: when as many calls had left the queue. Light engines.
"""

import argparse
import asyncio
import json
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import median

from tests.chaos.clients import Clients, Told, at_rate, session
from tests.chaos.figures import Figure
from tests.chaos.processes import CALL_S, Fleet, Plan, a_fleet
from tests.chaos.scripts import flags, report

ENGINES, SLOTS = 4, 6
QUEUE = 200
SLO_S = 30.0
WINDOW_S = 10.0
KEPT, HONEST = 0.95, 0.30
MORE_MEMORY = 0.05


async def overload(folder: Path, options: argparse.Namespace) -> Figure:
    """Run both phases; return what was seen."""
    seconds: float = options.seconds
    capacity = ENGINES * SLOTS / CALL_S
    plan = Plan.light(
        options.port, ENGINES, SLOTS, settings={"queue": {"max_requests": QUEUE, "timeout_s": 60}}
    )
    async with a_fleet(folder, plan) as fleet, session() as http:
        await fleet.ready(http)
        random, clients = Random(options.seed), Clients(http, fleet.url)
        loop = asyncio.get_running_loop()

        async def phase(times: float, lasts_s: float) -> tuple[float, float]:
            began_at = loop.time()
            await at_rate(
                times * capacity,
                lasts_s,
                random,
                lambda: clients.call(stream=random.random() < 0.5, max_tokens=80),
            )
            return began_at, began_at + lasts_s

        enough_s = max(min(seconds / 4, 60.0), 2 * WINDOW_S)
        enough = await phase(1.0, enough_s)
        watching = asyncio.ensure_future(_memory(fleet, seconds))
        much = await phase(options.times, seconds)
        memory = await watching
    errors = retry_after_errors(folder / "decisions.jsonl")
    return _judged(clients.told, enough, much, memory, errors, options.times)


async def _memory(fleet: Fleet, seconds: float) -> list[int]:
    """Return the gateway's memory, in bytes, a hundred times in so many seconds."""
    seen = []
    for _ in range(100):
        await asyncio.sleep(seconds / 100)
        seen.append(fleet.gateway.resident_bytes())
    return seen


def _judged(
    told: list[Told],
    enough: tuple[float, float],
    much: tuple[float, float],
    memory: list[int],
    errors: list[float],
    times: float,
) -> Figure:
    figure = Figure(f"{times:g} times the load that there is room for, {much[1] - much[0]:g} s")
    peak = max(_windows(told, *enough))
    kept = _windows(told, *much)[1:]  # while the queue fills, what is late is not yet seen
    figure.note("peak of goodput, answers a second (best 10 s with just enough)", f"{peak:.1f}")
    mean = sum(kept) / len(kept)
    figure.note("goodput under it: worst, best 10 s", f"{min(kept):.1f}, {max(kept):.1f}")
    figure.claim("goodput under it, mean >= 95 % of the peak", mean >= KEPT * peak, f"{mean:.1f}")
    within = [t for t in told if much[0] <= t.sent_at]
    refused = [t for t in within if t.outcome == "refused"]
    figure.note("sent, refused", f"{len(within)}, {len(refused)}")
    others = [t.code for t in within if t.outcome not in ("completed", "refused")]
    figure.none_of("calls that failed otherwise", others)
    silent = [t.code for t in refused if t.retry_after_s is None]
    figure.none_of("refusals without Retry-After", silent)
    middle = median(errors)
    seen = f"{100 * middle:.0f} % of {len(errors)}"
    figure.claim("Retry-After, median error <= 30 %", middle <= HONEST, seen)
    third = len(memory) // 3
    warm, last = max(memory[third : 2 * third]), max(memory[2 * third :])
    seen = f"{memory[0] / 1e6:.0f}, {warm / 1e6:.0f}, {last / 1e6:.0f} MB"
    name = "memory: at first, and its most in the second and the last third"
    figure.claim(f"{name}, <= 5 % more", last <= (1 + MORE_MEMORY) * warm, seen)
    return figure


def _windows(told: Iterable[Told], since: float, until: float) -> list[float]:
    """Return goodput by window."""
    counts = [0] * max(int((until - since) / WINDOW_S), 1)
    for call in told:
        window = int((call.ended_at - since) // WINDOW_S)
        is_good = call.outcome == "completed" and call.ended_at - call.sent_at <= SLO_S
        if is_good and 0 <= window < len(counts):
            counts[window] += 1
    return [count / WINDOW_S for count in counts]


def retry_after_errors(decisions: Path) -> list[float]:
    """Return |told - true| / true of every refusal for a full queue that can be judged."""
    waiting: set[str] = set()
    departures: list[float] = []
    refusals: list[tuple[float, float, int]] = []
    with decisions.open("rb") as lines:
        for line in lines:
            said = json.loads(line)
            kind, at = said["type"], said["at"]
            request_id = said.get("request_id") or said.get("command", {}).get("request_id")
            if kind == "Arrived":
                waiting.add(request_id)
            elif kind == "Reject":
                waiting.discard(request_id)
                told_s = said["command"]["retry_after_s"]
                if told_s is not None and waiting:
                    refusals.append((at, told_s, len(waiting)))
            elif kind in ("Start", "Evict", "Settle") and request_id in waiting:
                waiting.discard(request_id)
                departures.append(at)
    errors = []
    for at, told_s, ahead in refusals:
        last = bisect_right(departures, at) + ahead - 1
        if last < len(departures):
            true_s = departures[last] - at
            errors.append(abs(told_s - true_s) / true_s)
    return errors


if __name__ == "__main__":
    report(overload, flags(__doc__, {"--seconds": 300.0, "--times": 3.0}))
