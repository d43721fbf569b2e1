"""Real processes on loopback: engines that are not there, and the gateway before them."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep

READY_WITHIN_S = 60.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@contextmanager
def a_process(*words: str, ready_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `hexsage …` until the block ends; it has answered 200 at `ready_url` when it begins."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HEXSAGE_")}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "gateway", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        ) as process,
    ):
        try:
            _wait_until_ready(process, ready_url, log)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def a_fleet(tmp_path: Path, *gpus: str, speed: float = 50.0, settings: str = "") -> Iterator[str]:
    """Run emulated engines and a gateway; give out the gateway's base URL."""
    engines = {f"{gpu.lower()}-{number}": gpu for number, gpu in enumerate(gpus)}
    ports = {name: free_port() for name in engines}
    words = ["emulate", "--speed", str(speed), "--scheduling-policy", "priority"]
    lines = ["backends:"]
    for name, gpu in engines.items():
        words += ["--engine", f"name={name},gpu={gpu},port={ports[name]}"]
        lines.append(
            f"  - {{name: {name}, url: 'http://127.0.0.1:{ports[name]}', gpu: {gpu},"
            " priority_scheduling: true}"
        )
    config = tmp_path / "backends.yaml"
    config.write_text("\n".join([*lines, settings, ""]))
    port = free_port()
    health = f"http://127.0.0.1:{ports[next(iter(ports))]}/health"
    with (
        a_process(*words, ready_url=health, log=tmp_path / "engines.log"),
        a_process(
            "serve",
            "--config",
            str(config),
            "--port",
            str(port),
            ready_url=f"http://127.0.0.1:{port}/readyz",
            log=tmp_path / "gateway.log",
        ),
    ):
        yield f"http://127.0.0.1:{port}"


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    began_at = perf_counter()
    while perf_counter() - began_at < READY_WITHIN_S:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        sleep(0.05)
    raise AssertionError(f"{url} is not there:\n{log.read_text(errors='replace')}")
