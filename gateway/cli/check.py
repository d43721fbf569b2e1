"""`hexsage check FILE`: say everything that is wrong with a configuration."""

import argparse
import sys
from pathlib import Path

from gateway.cli.serve import loader
from gateway.cli.words import several
from gateway.keys_file import read_keys
from gateway.mistakes import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Read a configuration as `serve` would, and name every mistake in it."
    parser.epilog = "example:\n  hexsage check backends.yaml"
    parser.add_argument("file", type=Path, help="the configuration, such as backends.yaml")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if the configuration is sound."""
    try:
        settings = loader(arguments.file, {})()
        keys = read_keys(settings.keys_file) if settings.keys_file else ()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    told = f"{several(len(settings.backends), 'backend')}, policy {settings.policy.name}"
    if settings.keys_file:
        told += f", {several(len(keys), 'key')}"
    sys.stdout.write(f"{arguments.file}: {told}\n")
    return 0
