"""`hexsage check FILE`: say everything that is wrong with a configuration."""

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Read a configuration as `serve` would, and name every mistake in it."
    parser.epilog = "example:\n  hexsage check backends.yaml"
    parser.add_argument("file", type=Path, help="the configuration, such as backends.yaml")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if the configuration is sound."""
    try:
        settings = load_settings(arguments.file)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"{arguments.file}: {len(settings.backends)} backends, policy {settings.policy.name}\n"
    )
    return 0
