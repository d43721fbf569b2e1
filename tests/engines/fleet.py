"""Starts engines as processes, waits until they serve, and ends them with all their children."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gateway.core.profiles import GpuProfile
from tests.engines.venvs import venv_python

HERE = Path(__file__).parent
START_LIMIT_S = 600.0
"""vLLM imports for half a minute on two idle cores, and for four where ten others want them."""
END_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to start an engine."""

    name: str
    model: str
    """The name it serves."""
    port: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def vllm(name: str, model: str, folder: Path, *options: str, core: int = 0) -> Recipe:
    """vLLM with its CPU backend. `core` is where its worker computes."""
    # A small KV cache, said in bytes: the environment variable for it knows only whole GiB.
    options = ("--dtype", "float32", "--kv-cache-memory-bytes", str(64 << 20), *options)
    return _vllm(name, model, folder, options, {"VLLM_CPU_OMP_THREADS_BIND": str(core)})


def paced(
    name: str,
    model: str,
    folder: Path,
    profile: GpuProfile,
    *options: str,
    speed: float = 1.0,
    mean_tokens: float = 100.0,
) -> Recipe:
    """vLLM with steps that take the time of `profile`, `speed` times as fast, and with its KV."""
    constants = asdict(profile)
    names = ("prefill_s_per_token", "decode_base_s", "kv_read_s_per_token", "step_overhead_s")
    pace = {name: constants[name] for name in names}
    pace |= {"speed": speed, "mean_tokens": mean_tokens}
    # One block more than the profile has: vLLM keeps one for padding.
    blocks = profile.kv_tokens // profile.block_tokens + 1
    options = (
        *("--distributed-executor-backend", "paced_executor.PacedExecutor"),
        *("--additional-config", json.dumps({"pace": pace})),
        *("--block-size", str(profile.block_tokens), "--num-gpu-blocks-override", str(blocks)),
        *("--max-num-batched-tokens", str(profile.max_batched_tokens)),
        *("--max-num-seqs", str(profile.max_num_seqs), *options),
    )
    return _vllm(name, model, folder, options, {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"})


def _vllm(
    name: str, model: str, folder: Path, options: Sequence[str], environment: Mapping[str, str]
) -> Recipe:
    port = free_port()
    # Not `vllm serve`: the CPU wheel is a distribution of another name, and the command does not
    # find its own version.
    command = (
        *(str(venv_python("vllm")), "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--model", str(folder)),
        *("--served-model-name", model, "--enforce-eager", *options),
    )
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment = {**offline, **environment}
    return Recipe(name=name, model=model, port=port, command=command, environment=environment)


def llamacpp(name: str, model: str) -> Recipe:
    """llama.cpp's server with SmolLM2-135M."""
    port = free_port()
    python, script = str(venv_python("llamacpp")), str(HERE / "llamacpp_server.py")
    command = (python, script, "--port", str(port), "--name", model)
    return Recipe(name=name, model=model, port=port, command=command)


class Running:
    """A started process and its children: an engine, or the gateway."""

    def __init__(self, recipe: Recipe, logs: Path) -> None:
        self.recipe = recipe
        self.log = logs / f"{recipe.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                recipe.command,
                env={**os.environ, **recipe.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.recipe.url

    def wait_until_serving(self, path: str = "/health", limit_s: float = START_LIMIT_S) -> None:
        """Return once it answers 200; RuntimeError with the end of its log if it never does."""
        until = time.perf_counter() + limit_s
        while self.is_alive and time.perf_counter() < until:
            if self.says_ok(path):
                return
            time.sleep(0.25)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        raise RuntimeError(f"{self.recipe.name} does not serve; the end of its log:\n{tail}")

    def says_ok(self, path: str = "/health") -> bool:
        """Whether it answers 200."""
        with suppress(OSError), urllib.request.urlopen(self.url + path, timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    @property
    def is_alive(self) -> bool:
        """Its first process has not ended."""
        return self.process.poll() is None

    def core_pid(self) -> int:
        """Return the process of vLLM's engine core."""
        return next(pid for pid, name in self._members() if "EngineCore" in name)

    def end(self) -> None:
        """End it, by force if it does not go; every process of its session."""
        for number, patience_s in ((signal.SIGTERM, END_PATIENCE_S), (signal.SIGKILL, 5.0)):
            # Without members, the number of the group may be somebody else's by now.
            with suppress(ProcessLookupError):
                if self._members():
                    os.killpg(self.process.pid, signal.SIGCONT)
                    os.killpg(self.process.pid, number)
            until = time.perf_counter() + patience_s
            while self._members() and time.perf_counter() < until:
                time.sleep(0.05)
        self.process.wait(5.0)

    def _members(self) -> list[tuple[int, str]]:
        """Return the ids and titles of the live processes of its session."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                # pid (name) state parent group session ...; the name may hold anything
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    title = (entry / "cmdline").read_bytes().decode(errors="replace")
                    found.append((int(entry.name), title))
        return found


class Fleet:
    """Engines by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._engines: dict[str, Running] = {}

    def __getitem__(self, name: str) -> Running:
        return self._engines[name]

    def start(self, recipes: Iterable[Recipe]) -> None:
        """Start engines together, as far as they are not running, and wait for all."""
        started = []
        for recipe in recipes:
            engine = self._engines.get(recipe.name)
            if engine is None or not engine.is_alive:
                if engine is not None:
                    engine.end()
                started.append(Running(recipe, self._logs))
                self._engines[recipe.name] = started[-1]
        for engine in started:
            engine.wait_until_serving()

    def revive(self) -> None:
        """Start again, at the same addresses, whatever has died."""
        self.start([engine.recipe for engine in self._engines.values()])

    def end(self) -> None:
        """End them all."""
        for engine in self._engines.values():
            engine.end()


@contextmanager
def running(recipes: Iterable[Recipe], logs: Path) -> Iterator[Fleet]:
    """Start engines, and end them whatever happens."""
    logs.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(logs)
    try:
        fleet.start(recipes)
        yield fleet
    finally:
        fleet.end()


def gateway(config: Path, environment: Mapping[str, str]) -> Recipe:
    """`hexsage serve` on a configuration."""
    port = free_port()
    command = (
        *(sys.executable, "-m", "gateway", "serve", "--config", str(config)),
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    return Recipe(name="gateway", model="", port=port, command=command, environment=environment)
