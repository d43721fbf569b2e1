"""The engine model beside vLLM's own scheduler, on the same calls with the same step times.

    python -m bench.emulator_vs_vllm [--write] [--seed 1] [--only light]

Starts one vLLM whose forward pass takes the time of the L4 profile (`tests/engines`), sends it each
trace over HTTP in real time, plays the same trace through `gateway.sim.engine.EngineModel`, and
prints both side by side. `--write` puts the table into docs/benchmarks/emulator.md. No GPU takes
part: this says whether the model schedules as vLLM does, not whether the profile is right.
"""

import argparse
import asyncio
import itertools
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

import aiohttp
import orjson

from gateway.core.profiles import PROFILES
from gateway.core.types import PromptSegment
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, FinishedAt
from tests.engines.fleet import paced, running
from tests.engines.tiny_model import build
from tests.engines.wire import metric

PROFILE = PROFILES["L4"]
MODEL = "paced"
VLLM = "0.32.0"
REPORT = Path("docs/benchmarks/emulator.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
TOKEN_IDS = range(300, 1000)
"""Ordinary tokens of the tiny model."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One call of a trace."""

    at: float
    prompt: tuple[int, ...]
    output_tokens: int
    shared_tokens: int = 0
    """How much of the prompt's beginning others of its group have too."""
    group: int = 0
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Told:
    """What became of a call: when each token came, in seconds after it was sent."""

    token_at: tuple[float, ...]

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.token_at[0]

    @property
    def total_s(self) -> float:
        """Time to the last token."""
        return self.token_at[-1]

    @property
    def gap_s(self) -> float:
        """Mean time between tokens."""
        return (self.total_s - self.first_s) / max(len(self.token_at) - 1, 1)

    @property
    def longest_gap_s(self) -> float:
        """Longest time between tokens."""
        return max((b - a for a, b in itertools.pairwise(self.token_at)), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A whole trace on one of the two."""

    told: tuple[Told, ...]
    preemptions: int
    cached_tokens: int


# -- the traces


def light(random: Random) -> list[Asked]:
    """Calls that seldom meet."""
    return _calls(random, count=24, per_s=0.5, prompt=(100, 1500), output=(20, 120))


def pressure(random: Random) -> list[Asked]:
    """More than the KV cache holds."""
    return _calls(random, count=40, per_s=2.0, prompt=(400, 1200), output=(300, 700))


def priorities(random: Random) -> list[Asked]:
    """The same with two classes of urgency."""
    return [
        Asked(at=call.at, prompt=call.prompt, output_tokens=call.output_tokens, priority=priority)
        for call in pressure(random)
        for priority in [random.choice((0, 10))]
    ]


def prefixes(random: Random) -> list[Asked]:
    """Four groups of calls that begin alike."""
    begins = [_tokens(random, 1500) for _ in range(4)]
    calls = _calls(random, count=48, per_s=1.0, prompt=(50, 300), output=(30, 150))
    return [
        Asked(
            at=call.at,
            prompt=begins[group] + call.prompt,
            output_tokens=call.output_tokens,
            shared_tokens=len(begins[group]),
            group=group,
        )
        for call in calls
        for group in [random.randrange(4)]
    ]


TRACES: dict[str, Callable[[Random], list[Asked]]] = {
    "light load": light,
    "KV pressure": pressure,
    "KV pressure, two priorities": priorities,
    "shared prefixes": prefixes,
}


def _calls(
    random: Random, *, count: int, per_s: float, prompt: tuple[int, int], output: tuple[int, int]
) -> list[Asked]:
    at = 0.0
    calls = []
    for _ in range(count):
        at += random.expovariate(per_s)
        tokens = _tokens(random, random.randint(*prompt))
        calls.append(Asked(at=at, prompt=tokens, output_tokens=random.randint(*output)))
    return calls


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.choices(TOKEN_IDS, k=count))


# -- the two engines


def modelled(trace: Sequence[Asked], *, caching: bool) -> Outcome:
    """Play a trace through the model."""
    engine = EngineModel(PROFILE, priority_scheduling=True, prefix_caching=caching)
    tokens: dict[str, list[float]] = {str(number): [] for number in range(len(trace))}
    arrivals = list(enumerate(trace))
    present: set[str] = set()
    now = 0.0
    while arrivals or present:
        step_at = engine.next_step_at(now)
        if arrivals and (step_at is None or arrivals[0][1].at <= step_at):
            number, call = arrivals.pop(0)
            now = call.at
            shared = PromptSegment(call.group + 1, call.shared_tokens)
            prefix = (shared,) if call.shared_tokens else ()
            length = len(call.prompt)
            engine.submit(
                EngineCall(str(number), length, call.output_tokens, prefix, call.priority), now
            )
            present.add(str(number))
            continue
        assert step_at is not None
        now = step_at
        for event in engine.advance(now):
            if isinstance(event, FinishedAt):
                tokens[event.call_id].append(event.at)
                present.remove(event.call_id)
        for name in present:
            if engine.output_tokens(name, now) > len(tokens[name]):
                tokens[name].append(now)
    return Outcome(
        told=tuple(
            Told(token_at=tuple(at - call.at for at in tokens[str(number)]))
            for number, call in enumerate(trace)
        ),
        preemptions=engine.preemptions,
        cached_tokens=engine.prefix_hits,
    )


async def measured(url: str, trace: Sequence[Asked]) -> Outcome:
    """Send a trace to vLLM in real time."""
    names = ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total")
    before = [metric(url, name) for name in names]
    timeout = aiohttp.ClientTimeout(total=600)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as tasks,
    ):
        start = asyncio.get_running_loop().time() + 0.5
        calls = [tasks.create_task(_send(session, url, call, start)) for call in trace]
    await asyncio.sleep(1.0)  # the last step's figures
    preemptions, cached = (metric(url, n) - b for n, b in zip(names, before, strict=True))
    told = tuple(task.result() for task in calls)
    return Outcome(told=told, preemptions=int(preemptions), cached_tokens=int(cached))


async def _send(session: aiohttp.ClientSession, url: str, call: Asked, start: float) -> Told:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(start + call.at - loop.time())
    body = {
        "model": MODEL,
        "prompt": call.prompt,
        "max_tokens": call.output_tokens,
        "ignore_eos": True,
        "priority": call.priority,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    sent_at = loop.time()
    token_at: list[float] = []
    async with session.post(url + "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                # Tokens that come together count as such.
                tokens = orjson.loads(line[6:])["usage"]["completion_tokens"]
                token_at += [loop.time() - sent_at] * (tokens - len(token_at))
    assert len(token_at) == call.output_tokens
    return Told(token_at=tuple(token_at))


# -- side by side


def rows(name: str, vllm: Outcome, model: Outcome) -> Iterable[str]:
    """Return the lines of a trace."""
    figures: dict[str, Callable[[Told], float]] = {
        "first token": lambda told: told.first_s,
        "between tokens, mean": lambda told: told.gap_s,
        "between tokens, longest": lambda told: told.longest_gap_s,
        "last token": lambda told: told.total_s,
    }
    for figure, of in figures.items():
        ours, theirs = ([of(told) for told in outcome.told] for outcome in (model, vllm))
        cells = [
            f"{_share(v, p):.3f} / {_share(m, p):.3f}"
            for p in (50, 95)
            for v, m in [(theirs, ours)]
        ]
        off = [abs(m - v) / v for m, v in zip(ours, theirs, strict=True) if v > 0]
        yield f"| {name} | {figure}, s | {cells[0]} | {cells[1]} | {median(off):.1%} |"
    mean = fmean(t.total_s for t in model.told) / fmean(t.total_s for t in vllm.told) - 1
    yield f"| {name} | mean of last token, model to vLLM | | | {mean:+.1%} |"
    yield f"| {name} | preemptions | {vllm.preemptions} / {model.preemptions} | | |"
    yield f"| {name} | tokens found cached | {vllm.cached_tokens} / {model.cached_tokens} | | |"


def _share(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="traces whose name begins so")
    parser.add_argument("--no-prefix-caching", action="store_true", help="on either side")
    parser.add_argument("--write", action="store_true", help=f"put the table into {REPORT}")
    arguments = parser.parse_args()
    if arguments.write and (arguments.only or arguments.no_prefix_caching):
        parser.error("the report holds all traces, as vLLM is by default")
    lines = [
        "| trace | figure | P50: vLLM / model | P95: vLLM / model | a call's difference, median |",
        "| --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = build(folder / "model", max_tokens=16_384)
        caching = not arguments.no_prefix_caching
        options = ["--scheduling-policy", "priority"]
        if not caching:
            options.append("--no-enable-prefix-caching")
        recipe = paced("vllm", MODEL, weights, PROFILE, *options)
        with running([recipe], folder / "logs") as fleet:
            for title, make in TRACES.items():
                if title.startswith(arguments.only or ""):
                    trace = make(Random(arguments.seed))
                    vllm = asyncio.run(measured(fleet["vllm"].url, trace))
                    lines += rows(title, vllm, modelled(trace, caching=caching))
                    print("\n".join(lines[-7:]), flush=True)
    command = " ".join(["python -m bench.emulator_vs_vllm", *sys.argv[1:]])
    lines += [
        "",
        f"`{command}`: vLLM {VLLM} scheduler, emulated forward pass; profile {PROFILE.name}, real "
        f"time; seed {arguments.seed}; Python {platform.python_version()}, {platform.machine()}.",
    ]
    if arguments.write:
        head, rest = REPORT.read_text().split(BEGIN)
        _, tail = rest.split(END)
        REPORT.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + tail)


if __name__ == "__main__":
    main()
