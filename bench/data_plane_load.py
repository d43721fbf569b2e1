"""What is asked of the targets of bench/data_plane.py, and what it costs them."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.data_plane_processes import Process
from bench.data_plane_targets import Target, free_port

SEEN_PROMPTS = 64
READY_S = 120.0
CASE_S = 60


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some work, the same for every target."""

    requests: int
    options: Mapping[str, int]
    is_unseen: bool = False
    """No prompt has been asked before."""


def _plain(requests: int, connections: int, *, is_unseen: bool = False) -> Case:
    return Case(requests=requests, options={"connections": connections}, is_unseen=is_unseen)


CASES: Mapping[str, Case] = {
    "plain-1": _plain(2000, 1),
    "plain-16": _plain(2000, 16),
    "plain-64": _plain(2000, 64),
    "unseen-16": _plain(1000, 16, is_unseen=True),
    "burst-16": Case(requests=48, options={"connections": 16, "stream": 1, "chunks": 200}),
    "paced-64": Case(
        requests=64,
        options={
            "connections": 64,
            "stream": 1,
            "chunks": 200,
            "pause_us": 20_000,
            "stagger_us": 20_000 // 64,
        },
    ),
}
WARMING = ("plain-16", "burst-16", "paced-64")
"""Each has prompts of its own: what is wanted of an answer stands in the text."""
WARMING_USES = 256
"""Of each prompt of plain calls: what comes again and again is to be measured."""
FOR_SLOW = ("plain-16",)
SLOW_REQUESTS = 48


class RigError(Exception):
    """A measurement that could not be made."""


@dataclass
class Rig:
    """The backend and the load client."""

    folder: Path
    load_cores: Collection[int]
    program: Path = field(init=False)
    backend: Process = field(init=False)
    backend_port: int = field(init=False)
    _next_unseen: int = 1_000_000

    def start(self) -> None:
        """Compile it and start the backend."""
        self.program = self.folder / "rig"
        source = Path(__file__).with_name("data_plane_rig.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-o", self.program, source], check=True)
        self.backend_port = free_port()
        command = [str(self.program), "backend", str(self.backend_port)]
        log = self.folder / "backend.log"
        self.backend = Process("backend", command, log, self.load_cores)
        self.backend.start()

    def begin_load(
        self, port: int, requests: int, options: Mapping[str, int]
    ) -> subprocess.Popen[bytes]:
        """Start the load client."""
        wanted = {"for_ms": CASE_S * 1000, **options, "port": port, "requests": requests}
        arguments = [f"{name}={value}" for name, value in wanted.items()]
        popen = subprocess.Popen([self.program, "load", *arguments], stdout=subprocess.PIPE)
        os.sched_setaffinity(popen.pid, self.load_cores)
        return popen

    def load(self, port: int, requests: int, options: Mapping[str, int]) -> dict[str, float]:
        """Run the load client to its end."""
        output, _ = self.begin_load(port, requests, options).communicate(timeout=CASE_S + 30)
        result: dict[str, float] = json.loads(output)
        return result

    def measure(self, target: Target | None, case: Case) -> dict[str, float]:
        """Run a case before a target (None: the backend itself); return its figures."""
        requests = case.requests
        if target is not None and target.is_slow:
            requests = SLOW_REQUESTS
        options = {**case.options, "prompts": SEEN_PROMPTS}
        if case.is_unseen:
            options |= {"prompts": requests, "first_prompt": self._next_unseen}
            self._next_unseen += requests
        port = self.backend_port if target is None else target.port
        cpu_s = 0.0 if target is None else target.process.cpu_s()
        result = self.load(port, requests, options)
        if result["bad"] or result["good"] != requests:
            raise RigError(
                f"{result['bad']:.0f} of {requests} answers were wrong: {result['mistake']}"
            )
        if target is None:
            return result
        spent_s = target.process.cpu_s() - cpu_s
        result["cpu_ms"] = spent_s * 1e3 / requests
        if result["chunks"]:
            result["cpu_us_per_chunk"] = spent_s * 1e6 / result["chunks"]
        result["rss_mb"] = target.process.rss_bytes() / 1e6
        return result

    def warm_up(self, target: Target) -> None:
        """Wait until a target answers, and show it the prompts that are to have been seen."""
        ends_at = time.perf_counter() + READY_S
        mistake = ""
        while time.perf_counter() < ends_at and target.process.is_alive:
            try:
                result = self.load(target.port, 1, {})
            except subprocess.SubprocessError as error:
                mistake = str(error)
            else:
                if result["good"]:
                    break
                mistake = str(result["mistake"])
            time.sleep(0.3)
        else:
            raise RigError(f"{target.name} does not answer: {mistake}")
        if not target.is_slow:
            for name in WARMING:
                case = CASES[name]
                requests = WARMING_USES * SEEN_PROMPTS if name == "plain-16" else 3 * SEEN_PROMPTS
                self.load(target.port, requests, {**case.options, "prompts": SEEN_PROMPTS})


def fetch(port: int, path: str) -> str:
    """Return what a path says; empty if nobody answers in time."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, urllib.error.URLError):
        return ""
