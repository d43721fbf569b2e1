"""What `observe_progress` costs and buys.

    python -m bench.observed             # CPU of the gateway, live, before an emulated vLLM
    python -m bench.observed --gain      # latency, simulated

Cost: one gateway, blocks of calls that are asked for whole and of calls that are put together, by
turns; ratios are of neighbouring blocks. Gain: the same arrivals with a scheduler that hears of
first tokens and progress and with one that does not; an upper bound, as it hears of all of them.
Nothing here is a measurement of a GPU.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import aiohttp

from bench.data_plane_processes import Process
from bench.scheduling_rig import FLEETS, Bench
from gateway.sim.experiment import Workload
from gateway.sim.scorecard import Scorecard, bootstrap_ratio
from loadgen.workloads.text2sql import text2sql

CONCURRENCY = 8
WHOLE = {"something_else": 0}
"""A field that the gateway does not know: it asks for the whole."""


def main() -> None:
    """Measure one or the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gain", action="store_true")
    parser.add_argument("--port", type=int, default=23100, help="two ports from here on")
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 100, 400])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--calls", type=int, default=200, help="in a block")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.gain:
        gain(arguments.seeds)
    else:
        cost(arguments.port, arguments.tokens, arguments.blocks, arguments.calls)


def cost(port: int, lengths: Sequence[int], blocks: int, calls: int) -> None:
    """Print the CPU seconds of the gateway a call, whole and put together."""
    print("| tokens | whole, ms CPU | assembled, ms CPU | ratio (blocks) | µs CPU a token more |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        engine, gateway = _processes(home, port)
        try:
            engine.start()
            gateway.start()
            for tokens in lengths:
                print(asyncio.run(_row(gateway, port + 1, tokens, blocks, calls)), flush=True)
        finally:
            gateway.stop()
            engine.stop()


def _processes(home: Path, port: int) -> tuple[Process, Process]:
    backend = {"name": "e0", "url": f"http://127.0.0.1:{port}", "kind": "vllm", "gpu": "H100"}
    config = home / "backends.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"backends": [backend], "observe_progress": True}))
    python = [sys.executable, "-m", "gateway"]
    emulate = [*python, "emulate", "--kind", "vllm", "--gpu", "H100", "--model", "m1"]
    engine = [*emulate, "--port", str(port), "--speed", "10"]
    serve = [*python, "serve", "--config", str(config), "--port", str(port + 1)]
    return (
        Process("engine", engine, home / "engine.log", [1]),
        Process("gateway", serve, home / "gateway.log", [0]),
    )


async def _row(gateway: Process, port: int, tokens: int, blocks: int, calls: int) -> str:
    url = f"http://127.0.0.1:{port}"
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        await _ready(session)
        body = {
            "model": "m1",
            "messages": [{"role": "user", "content": "what does it cost?"}],
            "max_tokens": tokens,
            "vllm_xargs": {"out_len": tokens},
        }
        for more in ({}, WHOLE, {}):  # its form is known, its connections are open
            await _block(gateway, session, {**body, **more}, 20)
        pairs = [
            (
                await _block(gateway, session, {**body, **WHOLE}, calls),
                await _block(gateway, session, body, calls),
            )
            for _ in range(blocks)
        ]
    whole = statistics.median(pair[0] for pair in pairs)
    assembled = statistics.median(pair[1] for pair in pairs)
    ratios = sorted(pair[1] / pair[0] for pair in pairs)
    a_token = statistics.median((pair[1] - pair[0]) / tokens for pair in pairs)
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    per_call = f"{whole * 1e3:.2f} | {assembled * 1e3:.2f}"
    return f"| {tokens} | {per_call} | {spread} | {a_token * 1e6:.0f} |"


async def _ready(session: aiohttp.ClientSession) -> None:
    until = time.perf_counter() + 60
    while time.perf_counter() < until:
        try:
            async with session.get("/readyz") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the gateway did not start")


async def _block(
    gateway: Process, session: aiohttp.ClientSession, body: dict[str, object], calls: int
) -> float:
    """Return the CPU seconds a call."""
    left = iter(range(calls))

    async def client() -> None:
        for _ in left:
            async with session.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    before_s = gateway.cpu_s()
    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    return (gateway.cpu_s() - before_s) / calls


def gain(seeds: int) -> None:
    """Print latencies without news of progress over those with it, paired."""
    workload = Workload.split("text2sql", text2sql(Random(3), 600))
    print("| fleet | load | mean (95 % interval) | P95 | P99 |")
    print("|---|---|---|---|---|")
    with ProcessPoolExecutor(2) as pool:
        bench = Bench([workload], Path(), seeds, pool)
        for name in ("hetero-1", "hetero-2"):
            for load in (0.6, 0.8, 0.95, 1.1):
                deaf, hearing = (
                    bench.grid(FLEETS[name], load, ["hexsage"], partial(replace, streams=streams))
                    for streams in (False, True)
                )
                print(f"| {name} | {load} | " + _gains(deaf["hexsage"], hearing["hexsage"]))


def _gains(deaf: Sequence[Scorecard], hearing: Sequence[Scorecard]) -> str:
    mean, low, high = bootstrap_ratio([s.mean_s for s in deaf], [s.mean_s for s in hearing])
    tails = [
        bootstrap_ratio(
            [s.percentile_s(share) for s in deaf], [s.percentile_s(share) for s in hearing]
        )[0]
        for share in (0.95, 0.99)
    ]
    return f"{mean:.3f} ({low:.3f}-{high:.3f}) | {tails[0]:.3f} | {tails[1]:.3f} |"


if __name__ == "__main__":
    main()
