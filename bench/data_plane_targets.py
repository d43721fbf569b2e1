"""Whom bench/data_plane.py measures: the gateway, and the peers that are installed."""

import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.data_plane_processes import Process

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "sglang-router": ("sglang-router==0.3.2",),
    "vllm-router": ("vllm-router==0.1.17",),
    # Pinned: there have been malicious releases.
    "litellm": ("litellm[proxy]==1.108.7",),
}
"""Peers that package indexes have; each gets a virtual environment of its own."""

ROOT = Path(__file__).parent.parent
GATEWAY_FILE = """
queue: {{max_requests: 20000, timeout_s: 600}}
limits: {{max_connections: 9900}}
backends:
"""
"""Everything else is as it comes: default policy, predictor, metrics, calibration, tuner."""
BACKEND_LINES = """
  - name: rig-{number}
    url: http://127.0.0.{last}:{backend}
    kind: vllm
    gpu: A100-80G
    max_in_flight: {slots}
"""

NGINX_FILE = """
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream engine {{
    server 127.0.0.1:{backend};
    keepalive 256;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    client_body_buffer_size 1m;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""

HAPROXY_FILE = """
global
  maxconn 8000
  nbthread 1
defaults
  mode http
  option http-keep-alive
  # Without it small events of a stream are held back for up to 200 ms.
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend clients
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server e1 127.0.0.1:{backend} pool-max-conn -1
"""

LITELLM_FILE = """
model_list:
  - model_name: rig
    litellm_params:
      {{model: openai/rig, api_base: "http://127.0.0.1:{backend}/v1", api_key: sk-none}}
litellm_settings: {{telemetry: false, set_verbose: false}}
general_settings: {{master_key: sk-rig}}
"""


@dataclass
class Target:
    """A gateway in front of the rig's backend."""

    name: str
    process: Process
    port: int
    is_slow: bool = False
    """It is measured in one case only, with little work: it would take for ever."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where targets run."""

    folder: Path
    peers: Path
    backend_port: int
    cores: Collection[int]
    slots: int = 256
    backends: int = 1
    """The rig's backend listens at as many addresses, up to eight."""
    """How many times the gateway knows the one there is: each takes as many calls as its slots."""
    environment: Mapping[str, str] = field(default_factory=dict)


def hexsage(
    place: Place,
    name: str = "hexsage",
    launcher: Sequence[str] = ("-m", "gateway"),
    python: Path | None = None,
) -> Target:
    """Return the gateway of this checkout, with its default configuration.

    Another interpreter must be of the same version: it uses the packages of this one.
    """
    port, folder = free_port(), _folder(place, name)
    file = folder / "backends.yaml"
    backends = [
        BACKEND_LINES.format(
            number=number, last=number + 1, backend=place.backend_port, slots=place.slots
        )
        for number in range(place.backends)
    ]
    file.write_text(GATEWAY_FILE.format() + "".join(backends), encoding="utf-8")
    command = [str(python or sys.executable), *launcher, "serve", "--config", str(file)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    process = _process(place, name, command)
    packages = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    process.environment = {**process.environment, "PYTHONPATH": packages}
    return Target(name, process, port)


def peer(place: Place, name: str) -> Target | None:
    """Return a peer, None if it is not installed."""
    make = _PEERS[name]
    return make(place, name)


def _nginx(place: Place, name: str) -> Target | None:
    program = shutil.which("nginx")
    if program is None:
        return None
    port, folder = free_port(), _folder(place, name)
    file = _written(folder / "nginx.conf", NGINX_FILE, place, port)
    return Target(name, _process(place, name, [program, "-c", file, "-p", str(folder)]), port)


def _haproxy(place: Place, name: str) -> Target | None:
    program = shutil.which("haproxy")
    if program is None:
        return None
    port = free_port()
    file = _written(_folder(place, name) / "haproxy.cfg", HAPROXY_FILE, place, port)
    return Target(name, _process(place, name, [program, "-f", file, "-db"]), port)


def _router(place: Place, name: str) -> Target | None:
    program = place.peers / name / "bin" / name
    if not program.exists():
        return None
    port = free_port()
    command = [str(program)] + (["launch"] if name == "sglang-router" else [])
    command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--worker-urls", f"http://127.0.0.1:{place.backend_port}"]
    command += ["--prometheus-port", str(free_port())]
    command += ["--log-level", "warn" if name == "sglang-router" else "warning"]
    return Target(name, _process(place, name, command), port)


def _litellm(place: Place, name: str) -> Target | None:
    program = place.peers / name / "bin" / "litellm"
    if not program.exists():
        return None
    port = free_port()
    file = _written(_folder(place, name) / "config.yaml", LITELLM_FILE, place, port)
    command = [str(program), "--config", file, "--host", "127.0.0.1", "--port", str(port)]
    process = _process(place, name, [*command, "--num_workers", "1"])
    process.environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_TELEMETRY": "False",
    }
    return Target(name, process, port, is_slow=True)


_PEERS = {
    "sglang-router": _router,
    "vllm-router": _router,
    "nginx": _nginx,
    "haproxy": _haproxy,
    "litellm": _litellm,
}
PEERS = tuple(_PEERS)


def free_port() -> int:
    """Return a port of the loopback that nobody listens at."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _folder(place: Place, name: str) -> Path:
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _written(file: Path, text: str, place: Place, port: int) -> str:
    filled = text.format(folder=file.parent, backend=place.backend_port, port=port)
    file.write_text(filled, encoding="utf-8")
    return str(file)


def _process(place: Place, name: str, command: list[str]) -> Process:
    log = _folder(place, name) / "log"
    return Process(name, command, log, place.cores, place.environment)
