"""What a request costs, the gateway and its peers side by side in one run.

    python -m bench.data_plane --install-peers     # once: peers that package indexes have
    python -m bench.data_plane --peers all --rounds 5 --json run.json

A backend and a load client in C (`data_plane_rig.c`, compiled here) have one core, whatever is
measured has another. In each round every case is run before every target, in an order that rotates:
compare inside one run only. CPU is user + system of a target's process tree. The gateway runs as
`hexsage serve` does: default policy, predictor, metrics, calibration.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.data_plane_load import CASES, FOR_SLOW, Case, Rig, RigError
from bench.data_plane_memory import measure_memory
from bench.data_plane_report import Line, report
from bench.data_plane_targets import PACKAGES, PEERS, Place, Target, hexsage, peer

PEERS_FOLDER = Path(__file__).parent.parent / ".venv-peers"
LAG_REQUESTS = 4_000


def main() -> int:
    """Measure; return the exit code."""
    options = _options()
    if options.install_peers:
        return _install(options.peers_folder)
    with tempfile.TemporaryDirectory(prefix="data-plane-") as name:
        folder = Path(name)
        cores = sorted(os.sched_getaffinity(0))
        rig = Rig(folder, {cores[0]})
        rig.start()
        place = Place(
            folder=folder,
            peers=options.peers_folder.absolute(),
            backend_port=rig.backend_port,
            cores={cores[-1]},
        )
        try:
            lines = _rounds(rig, _targets(options, place), options)
            extras: dict[str, dict[str, float]] = {}
            if options.lag:
                extras["lag_ms"] = _loop_lag(rig, place)
            if options.memory:
                extras["memory"] = measure_memory(rig, place)
        finally:
            rig.backend.stop()
    text = report(lines, extras, sys.argv[1:])
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps({"lines": lines, **extras}), encoding="utf-8")
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES), help="default: all of them")
    parser.add_argument("--peers", default="", help=f"all, or some of {', '.join(PEERS)}")
    parser.add_argument("--peers-folder", type=Path, default=PEERS_FOLDER)
    parser.add_argument(
        "--install-peers", action="store_true", help="from package indexes, then stop"
    )
    parser.add_argument(
        "--python", type=Path, help="another interpreter to measure the gateway with as well"
    )
    parser.add_argument("--no-lag", dest="lag", action="store_false")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--write", type=Path, help="write the tables to this Markdown file")
    return parser.parse_args()


def _install(folder: Path) -> int:
    """Make a virtual environment for each peer that a package index has."""
    for name, packages in PACKAGES.items():
        print(f"{name}: {' '.join(packages)}", flush=True)
        home = folder / name
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if subprocess.run([*pip, "--only-binary", ":all:", *packages], check=False).returncode:
            print(f"{name} is not for this Python; make {home} with another one", file=sys.stderr)
    print("nginx and haproxy come from the system's packages")
    return 0


def _targets(options: argparse.Namespace, place: Place) -> list[Target]:
    wanted = PEERS if options.peers == "all" else [p for p in options.peers.split(",") if p]
    targets = [hexsage(place)]
    if options.python is not None:
        targets.append(hexsage(place, "hexsage-other-python", python=options.python))
    for name in wanted:
        target = peer(place, name)
        if target is None:
            print(f"{name} is not installed: left out", file=sys.stderr)
        else:
            targets.append(target)
    return targets


def _rounds(rig: Rig, targets: Sequence[Target], options: argparse.Namespace) -> list[Line]:
    cases = {name: CASES[name] for name in options.cases.split(",")}
    lines: list[Line] = []
    running: list[Target | None] = [None]
    try:
        for target in targets:
            target.process.start()
            running.append(target)
            rig.warm_up(target)
        for number in range(options.rounds):
            turned = running[number % len(running) :] + running[: number % len(running)]
            for name, case in cases.items():
                lines += _measure_all(rig, turned, name, case, number)
    finally:
        for target in targets:
            target.process.stop()
    return lines


def _measure_all(
    rig: Rig, targets: Sequence[Target | None], name: str, case: Case, number: int
) -> list[Line]:
    lines: list[Line] = []
    for target in targets:
        if target is not None and target.is_slow and name not in FOR_SLOW:
            continue
        label = "direct" if target is None else target.name
        try:
            figures = rig.measure(target, case)
        except RigError as error:
            print(f"{label}, {name}: {error}", file=sys.stderr)
            continue
        lines.append({"round": number, "case": name, "target": label, **figures})
    return lines


def _loop_lag(rig: Rig, place: Place) -> dict[str, float]:
    """Return how late timers fire under load, with prompts that were seen and with new ones."""
    found: dict[str, float] = {}
    for name in ("plain-16", "unseen-16", "paced-64"):
        script = str(Path(__file__).with_name("data_plane_lag.py"))
        target = hexsage(place, f"lag-{name}", (script,))
        target.process.start()
        try:
            rig.warm_up(target)
            case = CASES[name]
            requests = case.requests if "stream" in case.options else LAG_REQUESTS
            rig.measure(
                target, Case(requests=requests, options=case.options, is_unseen=case.is_unseen)
            )
        finally:
            target.process.stop()
        said = json.loads((place.folder / target.name / "lag.json").read_text(encoding="utf-8"))
        found |= {f"{name} {share}": value for share, value in said.items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
