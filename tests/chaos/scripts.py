"""What the scripts of this folder have in common: their flags, a folder, and the report."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NoReturn

from tests.chaos.figures import Figure

Run = Callable[[Path, argparse.Namespace], Awaitable[Figure]]


def flags(documentation: str | None, defaults: Mapping[str, float]) -> argparse.Namespace:
    """Read the command line: these flags with numbers, the port, and the form of the report."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(name, type=type(default), default=default)
    parser.add_argument("--port", type=int, default=25000, help="the first of a few in a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    return parser.parse_args()


def report(run: Run, options: argparse.Namespace) -> NoReturn:
    """Run it, print what was seen; exit with 0 if nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        figure = asyncio.run(_awaited(run(Path(folder), options)))
    print(figure.as_json() if options.json else figure.markdown())  # noqa: T201 - the report
    sys.exit(1 if figure.wrong else 0)


async def _awaited(figure: Awaitable[Figure]) -> Figure:
    return await figure
