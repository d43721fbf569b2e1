"""Where the documents' commands are run: a copy of the tree, an emulated fleet, a gateway."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docs.markdown import ROOT, Block
from tests.e2e.processes import a_fleet

WRITTEN_AS = ("http://127.0.0.1:8080", "http://localhost:8080")
"""The gateway, as the documents write it."""
LIMIT_S = 40.0
PREAMBLE = """\
set -euo pipefail
hexsage() {{
  case $1 in
    top | why) command hexsage "$@" --url {url} ;;
    *) command hexsage "$@" ;;
  esac
}}
"""
"""Commands that need no address, because the documents' gateway has the usual one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that looks like the repository, and the gateway's base URL."""

    folder: Path
    url: str

    def here(self, text: str) -> str:
        """Return a text with the gateway's true address."""
        for written in WRITTEN_AS:
            text = text.replace(written, self.url)
        return text

    def run(self, block: Block) -> None:
        """Run a shell block; AssertionError with what it said if it fails."""
        scripts = Path(sys.executable).parent
        environment = {
            **{name: value for name, value in os.environ.items() if "HEXSAGE" not in name},
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        script = PREAMBLE.format(url=self.url) + self.here(block.text)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@contextmanager
def a_place(tmp_path: Path) -> Iterator[Place]:
    """Make one; what is written there does not touch the repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    with a_fleet(tmp_path, "A100-80G", "L40S", speed=200.0) as url:
        yield Place(folder, url)
