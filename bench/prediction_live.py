"""What live forecasts are worth: single calls with real prompts through gateway and engines.

    python -m bench.prediction_live [--alpaca DIR] [--loads 0.9,1.2] [--write FILE]

Emulated engines (timing of the GPUs named below, no model behind them) run `--speed` times faster
than real behind the gateway as it is shipped. It first answers the prompts of 70 % of the data and
so learns their lengths; then calls with the other 30 %, new to it until then, arrive as a
Poisson process, not streamed. Every row meets the same calls at the same instants, and begins with
what was learned in that one first phase. The last row's clients say the true length beforehand.
Times are those of real-speed engines; nothing was measured on a GPU.
"""

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

import aiohttp
import numpy as np

from bench.prediction_quality import Prompts
from gateway import __version__
from gateway.sim.experiment import Workload, capacity_per_s, fleet
from gateway.sim.trace import SINGLE, TraceCall, TraceStep, TraceWorkflow
from tools.loopback import served

GPUS = ("A100", "A100", "A6000", "L40S")
MODEL = "Meta-Llama-3-8B-Instruct"
LEARNING_LOAD = 0.7
ROWS = (
    ("least_backlog+fcfs (engine FCFS)", "least_backlog+fcfs", False),
    ("weighted_jsq+fcfs (engine FCFS)", "weighted_jsq+fcfs", False),
    ("srpt, point forecast", "srpt", False),
    ("sagesched", "sagesched", False),
    ("hexsage", "hexsage", False),
    ("hexsage, told the true length", "hexsage", True),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One call: when, in real-speed seconds, and with which prompt."""

    at_s: float
    prompt: str
    output_tokens: int


@contextmanager
def gateway(policy: str, speed: float, state: Path) -> Iterator[str]:
    """Run the fleet under a policy, with what `state` remembers; yield the gateway's URL."""
    backends = [
        {"name": f"{gpu.lower()}-{number}", "kind": "vllm", "gpu": gpu, "model": MODEL}
        for number, gpu in enumerate(GPUS)
    ]
    config = {
        "backends": backends,
        "policy": {"name": policy},
        "queue": {"max_requests": 100_000, "timeout_s": 3600},
        "timeouts": {"first_token_s": 3600, "total_s": 3600},
        "state_dir": str(state),
        "tuner": {"enabled": False},
    }
    with tempfile.TemporaryDirectory() as folder, served(config, speed, Path(folder)) as url:
        yield url


async def play(
    url: str, calls: Sequence[Asked], speed: float, *, tells_length: bool
) -> list[float]:
    """Send every call at its instant; return real-speed seconds to the last token of each."""
    loop = asyncio.get_running_loop()
    started_at = loop.time() + 0.1
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(url, connector=connector) as session:

        async def one(call: Asked) -> float:
            due_at = started_at + call.at_s / speed
            await asyncio.sleep(max(due_at - loop.time(), 0.0))
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": call.prompt}],
                "vllm_xargs": {"out_len": call.output_tokens},
            }
            told = {"x-expected-output-tokens": str(call.output_tokens)} if tells_length else {}
            async with session.post("/v1/chat/completions", json=body, headers=told) as answer:
                whole = await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"a call failed with {answer.status}: {whole[:200]!r}")
            return (loop.time() - due_at) * speed

        return list(await asyncio.gather(*(one(call) for call in calls)))


def arriving(
    prompts: Sequence[tuple[str, int]], rate_per_s: float, count: int, seed: int
) -> list[Asked]:
    """Return calls with these prompts in random order, each once before any comes again."""
    rng = Random(seed)
    calls: list[Asked] = []
    left: list[tuple[str, int]] = []
    now = 0.0
    for _ in range(count):
        left = left or rng.sample(prompts, len(prompts))
        now += rng.expovariate(rate_per_s)
        calls.append(Asked(now, *left.pop()))
    return calls


def capacity(seen: Sequence[tuple[str, int]], unseen: Sequence[tuple[str, int]]) -> float:
    """Return the modelled fleet's throughput of the unseen prompts, in calls/s at real speed."""

    def flow(prompt: str, tokens: int) -> TraceWorkflow:
        call = TraceCall(
            stage="-", prompt_tokens=max(len(prompt) // 4, 1), output_tokens=max(tokens, 1)
        )
        return TraceWorkflow(name=SINGLE, steps=(TraceStep(calls=(call,)),))

    workload = Workload(
        name=MODEL,
        seen=tuple(flow(*each) for each in seen),
        held_out=tuple(flow(*each) for each in unseen),
    )
    return capacity_per_s(workload, fleet(GPUS), 3000, max_in_flight=None)


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alpaca", type=Path, default=Path("../shared/traces/alpaca_eval"))
    parser.add_argument("--loads", default="0.9,1.2")
    parser.add_argument("--calls", type=int, default=4000, help="of each cell")
    parser.add_argument("--speed", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    path = arguments.alpaca / "lengths.json"
    if not path.is_file():
        print(f"{path} is not there: this bench needs real prompts with their answers' lengths")
        return 2
    data = Prompts.load(path)
    pairs = [
        (prompt, int(tokens))
        for prompt, tokens in zip(data.texts, data.tokens[MODEL], strict=True)
        if tokens > 0
    ]
    Random(arguments.seed).shuffle(pairs)
    cut = len(pairs) * 7 // 10
    lines = table(pairs[:cut], pairs[cut:], arguments)
    if arguments.write:
        arguments.write.write_text("\n".join([*lines, ""]), "utf-8")
    return 0


def table(
    seen: Sequence[tuple[str, int]],
    unseen: Sequence[tuple[str, int]],
    arguments: argparse.Namespace,
) -> list[str]:
    """Measure every row and print it; return the lines."""
    speed, seed = arguments.speed, arguments.seed
    loads = [float(text) for text in arguments.loads.split(",")]
    at_full = capacity(seen, unseen)
    lines = [
        f"`python -m bench.prediction_live --loads {arguments.loads} --calls {arguments.calls} "
        f"--speed {speed:g} --seed {seed}`, HexSage {__version__}, CPython "
        f"{platform.python_version()}: emulated {', '.join(GPUS)}, prompts and lengths of {MODEL}; "
        f"load 1.0 is {at_full:.1f} calls/s.",
        "",
        "| mean TTLT s (median, P95) | " + " | ".join(f"load {load:g}" for load in loads) + " |",
        "|---|" + "---|" * len(loads),
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        states = {}
        for tells in (False, True):
            states[tells] = Path(folder) / f"learned-{tells}"
            lesson = arriving(seen, LEARNING_LOAD * at_full, len(seen), seed)
            with gateway("hexsage", speed, states[tells]) as url:
                asyncio.run(play(url, lesson, speed, tells_length=tells))
        for label, policy, tells in ROWS:
            cells = []
            for load in loads:
                state = Path(folder) / "state"
                shutil.copytree(states[tells], state)
                calls = arriving(unseen, load * at_full, arguments.calls, seed + 1)
                with gateway(policy, speed, state) as url:
                    took_s = asyncio.run(play(url, calls, speed, tells_length=tells))
                shutil.rmtree(state)
                p95 = float(np.quantile(took_s, 0.95))
                cells.append(f"{fmean(took_s):.1f} ({median(took_s):.1f}, {p95:.0f})")
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    load_now = f"Load average of this machine at the end: {os.getloadavg()[0]:.1f}."
    print(load_now)
    return [*lines, "", load_now]


if __name__ == "__main__":
    sys.exit(main())
