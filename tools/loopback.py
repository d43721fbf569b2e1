"""Processes of this project on loopback, for tools and benches: engines, gateway, free ports."""

import os
import socket
import subprocess
import sys
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

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.1
ADMIN_KEY_ENV = "HEXSAGE_ADMIN_KEY"


class StartError(RuntimeError):
    """A process did not start; the message has its last words."""


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextmanager
def _hexsage(name: str, command: Sequence[str], logs: Path) -> Iterator[_Running]:
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


@contextmanager
def served(config: dict[str, Any], speed: float, folder: Path) -> Iterator[str]:
    """Run emulated engines `speed` times as fast as real and a gateway; yield the gateway's URL.

    `config` is that of a gateway; each backend needs a `gpu`. Logs and the configuration as it is
    used go to `folder`.
    """
    with ExitStack() as stack:
        *engine_ports, gateway_port = _free_ports(len(config["backends"]) + 1)
        emulate = _emulate(config["backends"], engine_ports, speed)
        engines = stack.enter_context(_hexsage("engines", emulate, folder))
        path = folder / "backends.yaml"
        path.write_text(yaml.safe_dump(_filled_in(config, engine_ports, speed)))
        for port in engine_ports:
            _wait_for(engines, f"http://127.0.0.1:{port}/health")
        serve = ["serve", "--config", str(path), "--port", str(gateway_port)]
        gateway = stack.enter_context(_hexsage("gateway", serve, folder))
        url = f"http://127.0.0.1:{gateway_port}"
        _wait_for(gateway, f"{url}/readyz")
        yield url


def _wait_for(running: _Running, url: str) -> None:
    """Return when `url` answers 200; StartError with the process's last words if it never does."""
    opener = build_opener(ProxyHandler({}))
    give_up_at = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < give_up_at:
        if running.process.poll() is not None:
            raise StartError(f"{running.name} ended at once:\n{running.last_words()}")
        try:
            with opener.open(url, timeout=1.0):
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(POLL_S)
    raise StartError(f"{running.name} is not ready:\n{running.last_words()}")


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
