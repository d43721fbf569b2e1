"""`hexsage serve`: run the gateway until it is told to stop."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.config.settings import Settings
from gateway.config.sources import load_settings
from gateway.mistakes import ConfigError
from gateway.telemetry.logs import set_up
from gateway.workers.parent import Parent, child_program
from gateway.workers.sockets import probe, refusal

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
        _must_be_free(settings)
        # A parent of workers needs nothing of this.
        from gateway.cli.server import server_of

        server = server_of(settings, load, path)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    server.run()
    return server.exit_code


def loader(path: Path | None, overrides: dict[str, object]) -> Callable[[], Settings]:
    """Return what reads the settings, each time anew."""

    def load() -> Settings:
        settings = load_settings(path, overrides)
        if not settings.backends:
            raise ConfigError(["no backends: name some in backends.yaml (see --config)"])
        unreadable = [f"{path or 'the settings'}: {told}" for told in _unreadable(settings)]
        if unreadable:
            raise ConfigError(unreadable)
        return settings

    return load


def _must_be_free(settings: Settings) -> None:
    """Raise ConfigError if clients could not be listened to; uvicorn would find out late."""
    try:
        probe(settings.host, settings.port)
    except OSError as error:
        raise ConfigError([refusal(settings.host, settings.port, error)]) from None


def _unreadable(settings: Settings) -> Iterator[str]:
    """Tell of certificates and keys that are not there; their content is looked at later."""
    named: list[tuple[str, Path | None]] = []
    for index, backend in enumerate(settings.backends):
        named += [(f"backends[{index}].tls.{key}", path) for key, path in backend.tls]
    named += [(f"tls.{key}", path) for key, path in settings.tls or ()]
    for key, path in named:
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            yield f"{key}: {path} cannot be read ({error.strerror})"
