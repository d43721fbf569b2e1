"""`hexsage serve`: run the gateway until it is told to stop."""

import argparse
import asyncio
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from gateway.api.access import AccessLog
from gateway.api.fleet import BadSettings
from gateway.api.guard import ConnectionLimits, guarded
from gateway.app import Gateway
from gateway.config import ConfigError, Settings, load_settings
from gateway.runtime.clock import MonotonicClock
from gateway.runtime.garbage import calm
from gateway.telemetry.logs import set_up
from gateway.workers.parent import Parent, child_program

DEFAULT_FILE = Path("backends.yaml")
RESERVED_FILES = 128
ADMIN_CONNECTIONS = 256

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Run the gateway. The order of settings is command line, HEXSAGE_* variables, file, "
        "default."
    )
    parser.epilog = (
        "examples:\n"
        "  hexsage serve\n"
        "  hexsage serve --config backends.yaml --host 127.0.0.1 --port 8080\n"
        "  HEXSAGE_QUEUE__MAX_REQUESTS=200 hexsage serve --policy hexgen"
    )
    parser.add_argument("--config", type=Path, help=f"default: {DEFAULT_FILE}, if it is there")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8080)")
    parser.add_argument("--policy", help="scheduling policy, such as hexsage or round_robin+fcfs")
    parser.add_argument("--decision-log", type=Path, help="append decisions to this file")
    parser.add_argument(
        "--workers", type=int, help="processes that accept and relay (default 1: in this process)"
    )
    parser.add_argument("--log-level", help="debug, info, warning or error")


def run(arguments: argparse.Namespace) -> int:
    """Serve; return 0 after a clean stop."""
    path = arguments.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    overrides: dict[str, object] = {
        name: value
        for name in ("host", "port", "decision_log", "workers")
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.log_level is not None:
        overrides["log"] = {"level": arguments.log_level}
    if arguments.policy is not None:
        overrides["policy"] = {"name": arguments.policy}

    load = loader(path, overrides)
    try:
        settings = load()
        set_up(settings.log.format, settings.log.level)
        if settings.workers > 1:
            return asyncio.run(Parent(settings, path, overrides, child_program()).run())
        gateway = Gateway(settings, load=load, config_path=path)
        connections = possible_connections(settings.limits.max_connections)
        config = server_config(
            gateway.app, settings, settings.host, settings.port, connections, lifespan="on"
        )
        server = Server(gateway, settings, config)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    server.run()
    return 0


def loader(path: Path | None, overrides: dict[str, object]) -> Callable[[], Settings]:
    """Return what reads the settings, each time anew."""

    def load() -> Settings:
        settings = load_settings(path, overrides)
        if not settings.backends:
            raise ConfigError(["no backends: name some in backends.yaml (see --config)"])
        return settings

    return load


def possible_connections(wished: int) -> int:
    """Return how many clients may be connected: as configured, or what file handles allow.

    Each may need a handle for itself and one for its engine; some are for everything else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return wished
    possible = max((soft - RESERVED_FILES) // 2, 1)
    if possible < wished:
        log.warning("%d file handles are enough for %d connections", soft, possible)
    return min(possible, wished)


class Server(uvicorn.Server):
    """uvicorn, telling the gateway of a signal before it acts on it."""

    def __init__(self, gateway: Gateway, settings: Settings, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._grace_s = settings.drain_grace_s
        self._is_leaving = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._admin: uvicorn.Server | None = None
        admin = settings.admin
        if admin.port is not None:
            self._admin = uvicorn.Server(
                server_config(
                    gateway.admin_app, settings, admin.host, admin.port, ADMIN_CONNECTIONS
                )
            )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)
        calm()
        if self._admin is not None and self.started:
            self._admin.lifespan = self._admin.config.lifespan_class(self._admin.config)
            await self._admin.startup()
            await self._admin.on_tick(0)  # the headers of every answer are made there
            self.should_exit |= self._admin.should_exit

    async def on_tick(self, counter: int) -> bool:
        """Do what is due now and then."""
        if self._admin is not None and self._admin.started:
            await self._admin.on_tick(counter)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs end, as far as there is time."""
        await super().shutdown(sockets)
        if self._admin is not None and self._admin.started:
            await self._admin.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop gracefully; a second signal stops at once."""
        # uvicorn's own would raise the signal again in the end: a clean stop is no death.
        self.force_exit = self._is_leaving
        if self._loop is None:
            self.should_exit = True
        else:
            # A signal may strike in the middle of a decision: the scheduler hears of it after.
            has_grace = sig == signal.SIGTERM and not self._is_leaving
            self._loop.call_soon_threadsafe(self._leave, self._grace_s if has_grace else 0.0)
        self._is_leaving = True

    def _leave(self, grace_s: float) -> None:
        """Say that the end is near; close the door `grace_s` later."""
        self._gateway.withdraw()
        if grace_s:
            log.info(
                "stopping: not ready any more, and for %g s new calls are still taken", grace_s
            )
            asyncio.get_running_loop().call_later(grace_s, self._close_door)
        else:
            self._close_door()

    def _close_door(self) -> None:
        self._gateway.begin_shutdown()
        self.should_exit = True

    def _reload(self) -> None:
        task = asyncio.ensure_future(self._reload_quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_quietly(self) -> None:
        with suppress(BadSettings):  # it is in the log
            await self._gateway.operations.reload()


def server_config(
    app: ASGIApp,
    settings: Settings,
    host: str,
    port: int,
    max_connections: int,
    lifespan: Literal["on", "off"] = "off",
) -> uvicorn.Config:
    """Return how an application is served to clients; ConfigError if its TLS files are none."""
    limits = settings.limits
    tls = settings.tls
    config = uvicorn.Config(
        AccessLog(app, MonotonicClock()) if settings.log.access else app,
        host=host,
        port=port,
        loop="uvloop",
        http=guarded(
            ConnectionLimits(
                max_connections=max_connections,
                max_header_bytes=limits.max_header_bytes,
                header_timeout_s=limits.header_timeout_s,
                body_timeout_s=limits.body_timeout_s,
            )
        ),
        ws="none",
        lifespan=lifespan,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        log_level=settings.log.level,
        timeout_keep_alive=ceil(limits.keep_alive_s),
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        ssl_certfile=tls.cert_file if tls else None,
        ssl_keyfile=tls.key_file if tls else None,
        ssl_ca_certs=str(tls.client_ca_file) if tls and tls.client_ca_file else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca_file else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError([f"tls: {error}"]) from None
    return config
