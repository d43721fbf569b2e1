"""What waiting and streaming requests weigh: the gateway's memory, with and without them."""

import time
from collections.abc import Mapping
from dataclasses import replace

from bench.data_plane_load import CASES, SEEN_PROMPTS, Rig, RigError, fetch
from bench.data_plane_targets import Place, hexsage

QUEUED = 9_800
"""As many connections as a process may hold with 20,000 files open, one to an engine for each."""
STREAMS = 1_000
SLOTS = 16
SETTLE_S = 100.0
HOLD_MS = 150_000


def measure_memory(rig: Rig, place: Place) -> dict[str, float]:
    """Return kilobytes a queued and a streaming request, each with 1 KB of prompt."""
    few_slots = replace(place, slots=SLOTS)
    many_slots = replace(place, backends=8)
    waiting = {"connections": QUEUED, "think_us": HOLD_MS * 1000, "stagger_us": 4_000}
    streaming = {
        "connections": STREAMS,
        "stream": 1,
        "chunks": 1_000,
        "pause_us": 100_000,
        "stagger_us": 2_000,
    }
    return {
        "queued": QUEUED,
        "kb_a_queued_request": _kb_each(
            rig, few_slots, QUEUED, waiting, "hexsage_requests_queued", QUEUED - SLOTS
        ),
        "streams": STREAMS,
        "kb_a_stream": _kb_each(
            rig, many_slots, STREAMS, streaming, "hexsage_requests_in_flight", STREAMS
        ),
    }


def _kb_each(
    rig: Rig, place: Place, count: int, options: Mapping[str, int], gauge: str, wanted: int
) -> float:
    """Hold so many requests until the gauge shows them; return what each adds, in kB."""
    target = hexsage(place, "hexsage-memory")
    target.process.start()
    try:
        rig.warm_up(target)
        # What any traffic leaves behind (caches, histories, free lists) is not the requests'.
        plain = {**CASES["plain-64"].options, "prompts": SEEN_PROMPTS}
        rig.load(target.port, 4 * SEEN_PROMPTS, plain)
        before = target.process.rss_bytes()
        load = rig.begin_load(target.port, count, {**options, "for_ms": HOLD_MS})
        try:
            _wait_for(target.port, gauge, wanted)
            return float(target.process.rss_bytes() - before) / 1e3 / count
        finally:
            load.kill()
            load.communicate()
    finally:
        target.process.stop()


def _wait_for(port: int, gauge: str, wanted: int) -> None:
    ends_at = time.perf_counter() + SETTLE_S
    seen = 0.0
    while time.perf_counter() < ends_at:
        for line in fetch(port, "/metrics").splitlines():
            if line.startswith(f"{gauge} "):
                seen = float(line.split()[1])
        if seen >= wanted:
            return
        time.sleep(0.5)
    raise RigError(f"{gauge} is {seen:.0f}, not {wanted}")
