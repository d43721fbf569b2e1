"""make demo: an emulated mixed fleet, the gateway, a sweep that compares policies, a report.

    python -m tools.demo [--fast]

Everything runs on loopback, on free ports, and is ended with this process. Engines are emulated
(timing of the GPUs named in examples/demo/backends.yaml, no model behind it) and run --speed times
faster than real; the report's times are those of the real-speed engines.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadgen.__main__ import main as loadgen
from tools.loopback import StartError, served

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples" / "demo" / "backends.yaml"
BUSY = 1.5
"""Runnable processes a core above which the demo's own times are not to be trusted."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Rates are in workflows/s of real-speed engines."""

    qps: str
    workflows: int
    policies: str


# The fleet completes about 0.25 of the built-in workflows a second: loads of 0.55 and 1.05.
# Beside round robin stands JSQ: a win over round robin alone is no evidence of scheduling skill.
FULL = Size(
    qps="0.14,0.26",
    workflows=64,
    policies="round_robin+fcfs,least_backlog+fcfs,hexgen,hexsage",
)
FAST = Size(qps="0.20", workflows=40, policies="round_robin+fcfs,hexgen,hexsage")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return an exit code: 0, or loadgen's, or 1 if something did not start."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _demo(arguments, FAST if arguments.fast else FULL)
    except StartError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _demo(arguments: argparse.Namespace, size: Size) -> int:
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexsage-demo-")))
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        url = stack.enter_context(served(config, arguments.speed, logs))
        fleet = ", ".join(f"{one['name']} ({one['gpu']})" for one in config["backends"])
        print(f"{fleet}: emulated, {arguments.speed:g}x faster than real. Gateway at {url}")
        code = loadgen(
            [
                *("sweep", "--target", url, "--model", config["backends"][0]["model"]),
                *("--qps", size.qps, "--policies", arguments.policies or size.policies),
                *(flag for path in arguments.trace for flag in ("--trace", str(path))),
                *("--workflows", str(size.workflows), "--seed", str(arguments.seed)),
                *("--gpus", ",".join(one["gpu"] for one in config["backends"])),
                *("--speed", str(arguments.speed), "--out", str(arguments.out)),
                *("--title", "HexSage demo: text-to-SQL workflows on an emulated mixed fleet"),
            ]
        )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if code in {0, 1} and load > cores * BUSY:
        print(
            f"beware: this machine is busy (load average {load:.1f} on {cores} cores): engines and "
            "gateway were late, so latencies are too high, the more the higher the rate"
        )
    return code


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return speed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="one rate, little more than a minute")
    parser.add_argument("--policies", help="comma-separated, instead of the demo's own")
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="recorded workflows instead of the built-in ones; may be repeated",
    )
    parser.add_argument("--speed", type=_speed, default=20.0, help="(default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-report")
    return parser


if __name__ == "__main__":
    sys.exit(main())
