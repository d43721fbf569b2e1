"""Runs a command as the shell would."""

import argparse
from pathlib import Path
from types import ModuleType

from gateway.sim import trace
from tests.tuner.builders import a_trace


def command(module: ModuleType, *words: str) -> int:
    """Return the exit code; argparse's own refusals are one too."""
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    try:
        arguments = parser.parse_args(list(words))
    except SystemExit as exit:
        return int(exit.code or 0)
    code: int = module.run(arguments)
    return code


def write_trace(folder: Path, count: int = 40) -> str:
    """Write a small trace; return its path."""
    path = folder / "small.jsonl"
    path.write_text(trace.dumps(a_trace(count)))
    return str(path)
