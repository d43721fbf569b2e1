"""The scheduling table: every policy on paired arrivals, in simulation. Not a GPU measurement.

    python -m bench.scheduling                      # everything; about half an hour on two cores
    python -m bench.scheduling --only grid --seeds 3 --write docs/benchmarks/scheduling.md

Recorded traces are read from `../shared/traces` (or --traces DIR) where they are; without them the
built-in workloads stand in, and the report says so.
"""

import argparse
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.scheduling_rig import FIRST_SEED, Bench, load_workloads
from bench.scheduling_sections import SECTIONS
from gateway import __version__


def main() -> int:
    """Run the chosen sections; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="sections to run")
    parser.add_argument("--seeds", type=int, default=2, help="seeds a trace (default 2)")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--write", type=Path, help="write the report to this Markdown file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    workloads, source = load_workloads(arguments.traces)
    with ProcessPoolExecutor(arguments.workers) as pool:
        bench = Bench(
            workloads=workloads, traces=arguments.traces, seeds=arguments.seeds, pool=pool
        )
        bench.say("# Scheduling, simulated")
        bench.say()
        bench.say(
            f"Simulated, not measured on GPUs. HexSage {__version__}, Python "
            f"{platform.python_version()}; workload: {source}, {len(workloads)} x "
            f"{arguments.seeds} seeds from {FIRST_SEED}, 300 workflows a run. Command: "
            f"`python -m bench.scheduling {' '.join(sys.argv[1:])}`"
        )
        bench.say()
        for name in arguments.only or SECTIONS:
            SECTIONS[name](bench)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text("\n".join(bench.lines).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
