"""A virtual environment for each set of pins, made on demand and kept for the next run."""

import hashlib
import platform
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".venv-engines"
PLATFORM = ("Linux", "x86_64")
PYTHON = (3, 11)


class Unavailable(RuntimeError):
    """This machine cannot run an engine; the message says why."""


def venv_python(name: str) -> Path:
    """Return the interpreter that has the pins of `requirements-<name>.txt`.

    Unavailable: the engines' wheels do not exist for this machine, or could not be installed.
    """
    if (platform.system(), platform.machine()) != PLATFORM:
        raise Unavailable(f"the engines' wheels are for {' '.join(PLATFORM)}")
    if sys.version_info[:2] != PYTHON:
        raise Unavailable(f"the engines' pins are for Python {'.'.join(map(str, PYTHON))}")
    pins = HERE / f"requirements-{name}.txt"
    home = ROOT / f"{name}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    installed = home / ".installed"
    if not installed.exists():
        venv.create(home, clear=True, with_pip=True)
        # Without dependencies: the pins are complete, and a resolver would bring back CUDA builds
        # beside which the CPU engine does not even import.
        command = f"{python} -m pip install --quiet --disable-pip-version-check".split()
        command += ["--no-deps", "--no-compile", "-r", str(pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines() or ["pip said nothing"]
            raise Unavailable(f"the pins of {pins.name} could not be installed: {reason[-1]}")
        installed.touch()
    return python
