"""A day by volume: a million calls through one gateway, and its memory all the while.

    python -m tests.chaos.volume --calls 1000000

The engine and the clients are those of bench/data_plane_rig.c (a C compiler is needed), which leave
the processor to the gateway. Streams and whole answers by turns, thousands of different prompts.
"""

import argparse
import asyncio
import json
import shutil
import signal
from pathlib import Path

import aiohttp

from tests.chaos import books
from tests.chaos.clients import session
from tests.chaos.figures import Figure
from tests.chaos.processes import Child, Plan, a_fleet
from tests.chaos.scripts import flags, report

RIG = Path(__file__).parents[2] / "bench" / "data_plane_rig.c"
CONNECTIONS = 64
PROMPTS = 5000
PIECE = 10_000
"""Calls between two looks at the memory."""
WARM_UP = 0.3
"""Share of the calls until what is remembered of prompts is full, which takes 150,000 of them."""
GROWTH = 0.05


async def volume(folder: Path, options: argparse.Namespace) -> Figure:
    """Send them all; return what was seen."""
    rig = folder / "rig"
    compiler = shutil.which("cc") or "cc"
    await _run(compiler, "-O2", "-o", str(rig), str(RIG))
    engine_port = options.port + 1
    engine = await asyncio.create_subprocess_exec(rig, "backend", str(engine_port))
    settings: dict[str, object] = {
        "backends": [{"name": "e1", "url": f"http://127.0.0.1:{engine_port}", "gpu": "A100-80G"}],
        "decisions": False,
    }
    plan = Plan(port=options.port, engines=(), gpus=(), settings=settings)
    good = bad = 0
    memory: list[int] = []
    loop = asyncio.get_running_loop()
    try:
        async with a_fleet(folder, plan) as fleet, session() as http:
            await _until_ready(http, fleet.url)
            began_at, cpu_s = loop.time(), fleet.gateway.cpu_s()
            while good + bad < options.calls:
                said = await _load(rig, options.port, len(memory))
                good, bad = good + said["good"], bad + said["bad"]
                memory.append(_memory(fleet.gateway))
            seconds, cpu_s = loop.time() - began_at, fleet.gateway.cpu_s() - cpu_s
            metrics = await fleet.quiet(http, within_s=10)
    finally:
        engine.send_signal(signal.SIGKILL)
        await engine.wait()
    figure = Figure(f"{good} calls through one gateway")
    figure.note("calls a second, wall and processor", f"{good / seconds:.0f}, {good / cpu_s:.0f}")
    figure.claim("all were answered", bad == 0, f"{bad} were not")
    counted = books.counted(metrics)
    figure.claim("and counted", counted == {"completed": good}, f"{dict(counted)}")
    warm = memory[max(int(WARM_UP * len(memory)), 1) - 1]
    seen = ", ".join(f"{m / 1e6:.0f}" for m in memory[:: max(len(memory) // 10, 1)])
    figure.note("memory by tenths, MB", seen)
    grown = memory[-1] / warm - 1
    seen = f"{warm / 1e6:.1f} -> {memory[-1] / 1e6:.1f} MB ({100 * grown:+.1f} %)"
    figure.claim("memory grows by <= 5 % after the first three tenths", grown <= GROWTH, seen)
    figure.none_of("gauges that are not back to 0", books.left_over(metrics))
    return figure


def _memory(gateway: Child) -> int:
    return gateway.resident_bytes()


async def _load(rig: Path, port: int, number: int) -> dict[str, int]:
    """Send one piece of the calls."""
    told = await _run(
        str(rig),
        "load",
        f"port={port}",
        f"requests={PIECE}",
        f"connections={CONNECTIONS}",
        f"stream={number % 2}",
        "chunks=8",
        "pause_us=2000",
        "think_us=5000",
        "prompt_bytes=600",
        f"prompts={PROMPTS}",
        f"first_prompt={number * PROMPTS}",
        "for_ms=600000",
    )
    said: dict[str, int] = json.loads(told)
    return said


async def _run(*words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{words[0]} ended with {process.returncode}")
    return told


async def _until_ready(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with http.get(f"{url}/readyz") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    report(volume, flags(__doc__, {"--calls": 1_000_000}))
