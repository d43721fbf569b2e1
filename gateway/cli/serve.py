"""`hexsage serve`: run the gateway until it is told to stop."""

import argparse
import asyncio
import logging
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from gateway.api.protocol import Protocol
from gateway.app import Gateway
from gateway.config import ConfigError, Settings, load_settings

DEFAULT_FILE = Path("backends.yaml")


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
    parser.add_argument("--log-level", help="debug, info, warning or error")


def run(arguments: argparse.Namespace) -> int:
    """Serve; return 0 after a clean stop."""
    path = arguments.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    overrides: dict[str, object] = {
        name: value
        for name in ("host", "port", "decision_log", "log_level")
        if (value := getattr(arguments, name)) is not None
    }
    if arguments.policy is not None:
        overrides["policy"] = {"name": arguments.policy}
    try:
        settings = load_settings(path, overrides)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not settings.backends:
        sys.stderr.write("no backends: name some in backends.yaml (see --config)\n")
        return 1
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    gateway = Gateway(settings)
    Server(gateway, settings).run()
    return 0


class Server(uvicorn.Server):
    """uvicorn, telling the gateway of a signal before it acts on it."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                gateway.app,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http=Protocol,
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_level=settings.log_level,
                timeout_graceful_shutdown=int(settings.drain_timeout_s),
            )
        )
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop gracefully; a second signal stops at once."""
        if self._loop is not None:
            # A signal may strike in the middle of a decision: the scheduler hears of it after.
            self._loop.call_soon_threadsafe(self._gateway.begin_shutdown)
        # uvicorn's own would raise the signal again in the end: a clean stop is no death.
        self.force_exit = self.should_exit
        self.should_exit = True
