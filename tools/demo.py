"""make demo: an emulated mixed fleet, the gateway, a sweep that compares policies, a report.

    python tools/demo.py [--fast]

Everything runs on loopback, on free ports, and is ended with this process. Engines are emulated
(timing of the GPUs named in examples/demo/backends.yaml, no model behind it) and run --speed times
faster than real; the report's times are those of the real-speed engines.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import yaml

from gateway.core.profiles import built_in
from loadgen.__main__ import main as loadgen

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples" / "demo" / "backends.yaml"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.1
BUSY = 1.5
"""Runnable processes a core above which the demo's own times are not to be trusted."""
ADMIN_KEY_ENV = "HEXSAGE_ADMIN_KEY"


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Rates are in workflows/s of real-speed engines."""

    qps: str
    workflows: int
    policies: str


# The fleet completes about 0.25 of the built-in workflows a second: loads of 0.55 and 1.05.
# Beside round robin stands JSQ: a win over round robin alone is no evidence of scheduling skill.
FULL = Size(
    qps="0.14,0.26",
    workflows=64,
    policies="round_robin+fcfs,least_backlog+fcfs,hexgen,hexsage",
)
FAST = Size(qps="0.20", workflows=50, policies="round_robin+fcfs,hexgen")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return an exit code: 0, or loadgen's, or 1 if something did not start."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _demo(arguments, FAST if arguments.fast else FULL)
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _demo(arguments: argparse.Namespace, size: Size) -> int:
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexsage-demo-")))
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        *engine_ports, gateway_port = _free_ports(len(config["backends"]) + 1)
        emulate = _emulate(config["backends"], engine_ports, arguments.speed)
        engines = stack.enter_context(_process("engines", emulate, logs))
        path = logs / "backends.yaml"
        path.write_text(yaml.safe_dump(_filled_in(config, engine_ports, arguments.speed)))
        for port in engine_ports:
            _wait_for(engines, f"http://127.0.0.1:{port}/health")
        serve = ["serve", "--config", str(path), "--port", str(gateway_port)]
        url = f"http://127.0.0.1:{gateway_port}"
        gateway = stack.enter_context(_process("gateway", serve, logs))
        _wait_for(gateway, f"{url}/readyz")
        fleet = ", ".join(f"{one['name']} ({one['gpu']})" for one in config["backends"])
        print(f"{fleet}: emulated, {arguments.speed:g}x faster than real. Gateway at {url}")
        code = loadgen(
            [
                *("sweep", "--target", url, "--model", config["backends"][0]["model"]),
                *("--qps", size.qps, "--policies", arguments.policies or size.policies),
                *(flag for path in arguments.trace for flag in ("--trace", str(path))),
                *("--workflows", str(size.workflows), "--seed", str(arguments.seed)),
                *("--gpus", ",".join(one["gpu"] for one in config["backends"])),
                *("--speed", str(arguments.speed), "--out", str(arguments.out)),
                *("--title", "HexSage demo: text-to-SQL workflows on an emulated mixed fleet"),
            ]
        )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if code in {0, 1} and load > cores * BUSY:
        print(
            f"beware: this machine is busy (load average {load:.1f} on {cores} cores): engines and "
            "gateway were late, so latencies are too high, the more the higher the rate"
        )
    return code


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextmanager
def _process(name: str, command: Sequence[str], logs: Path) -> Iterator[_Running]:
    """Run `hexsage COMMAND` in a group of its own, so that Ctrl-C reaches only this process."""
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != ADMIN_KEY_ENV},
            start_new_session=True,
        )
    try:
        yield _Running(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(running: _Running, url: str) -> None:
    """Return when `url` answers 200; DemoError with the process's last words if it never does."""
    opener = build_opener(ProxyHandler({}))
    give_up_at = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < give_up_at:
        if running.process.poll() is not None:
            raise DemoError(f"{running.name} ended at once:\n{running.last_words()}")
        try:
            with opener.open(url, timeout=1.0):
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(POLL_S)
    raise DemoError(f"{running.name} is not ready:\n{running.last_words()}")


def _emulate(
    backends: Sequence[Mapping[str, Any]], ports: Sequence[int], speed: float
) -> list[str]:
    """Return the command of all engines, in one process: on two cores more would not be faster."""
    command = ["emulate", "--speed", str(speed), "--scheduling-policy", "priority"]
    for backend, port in zip(backends, ports, strict=True):
        engine = {name: backend[name] for name in ("name", "kind", "gpu", "model")} | {"port": port}
        command += ["--engine", ",".join(f"{key}={value}" for key, value in engine.items())]
    return command


def _filled_in(config: dict[str, Any], ports: Sequence[int], speed: float) -> dict[str, Any]:
    """Return the configuration with real ports, and profiles `speed` times as fast."""
    backends = [
        {name: value for name, value in backend.items() if name != "gpu"}
        | {"url": f"http://127.0.0.1:{port}", "profile": _scaled(backend["gpu"], speed)}
        for backend, port in zip(config["backends"], ports, strict=True)
    ]
    return config | {"backends": backends}


def _scaled(gpu: str, speed: float) -> dict[str, float]:
    profile = built_in(gpu)
    return {
        "prefill_tokens_per_s": speed / profile.prefill_s_per_token,
        "decode_base_s": profile.decode_base_s / speed,
        "kv_read_s_per_token": profile.kv_read_s_per_token / speed,
        "step_overhead_s": profile.step_overhead_s / speed,
        "kv_tokens": profile.kv_tokens,
    }


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; held together, so that none comes twice."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return speed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="one rate, about a minute")
    parser.add_argument("--policies", help="comma-separated, instead of the demo's own")
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="recorded workflows instead of the built-in ones; may be repeated",
    )
    parser.add_argument("--speed", type=_speed, default=20.0, help="(default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-report")
    return parser


if __name__ == "__main__":
    sys.exit(main())
