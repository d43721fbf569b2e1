"""What the commands read from the command line: traces, fleets, policies, mishaps."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from gateway.config.sources import load_settings
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.policies.alpha_balanced import Score
from gateway.core.profiles import built_in
from gateway.core.types import Backend, BackendId
from gateway.mistakes import ConfigError
from gateway.sim import recorder
from gateway.sim.experiment import DEADLINE_SCALE, Workload, capacity_per_s
from gateway.sim.simulator import MODEL, Fault, FaultKind
from gateway.sim.trace import SINGLE, TraceError, TraceWorkflow

OK, USAGE_ERROR = 0, 2


class UsageError(Exception):
    """What was asked for makes no sense; a sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """A policy as it was asked for."""

    label: str
    name: str
    settings: PolicySettings


def load_trace(path: Path) -> list[TraceWorkflow]:
    """Read a trace of any form, or a decision log."""
    try:
        workflows = recorder.load(path)
    except TraceError as error:
        raise UsageError(str(error)) from None
    if len(workflows) < 2:
        raise UsageError(f"{path}: a trace needs at least two workflows, to learn from and to play")
    return workflows


def capacity_of(workload: Workload, backends: Sequence[Backend]) -> float:
    """Return the fleet's reference capacity in workflows a second (load 1)."""
    # Short calls fill the KV cache before they fill a batch of 12.
    return capacity_per_s(workload, backends, max_in_flight=None if _is_single(workload) else 12)


def deadline_s_of(workload: Workload, backends: Sequence[Backend]) -> float | None:
    """Return the deadline of every workflow where the trace has none: three times T0.

    None where the trace has its own; single calls get none, or they would all be ordered by it.
    """
    has_deadlines = any(w.deadline_s is not None for w in workload.held_out)
    if has_deadlines or _is_single(workload):
        return None
    return DEADLINE_SCALE * workload.unloaded_s(backends)


def _is_single(workload: Workload) -> bool:
    return all(w.name == SINGLE for w in (*workload.seen, *workload.held_out))


def fleet_of(
    text: str, model_size_b: float | None = None, weight_bits: int | None = None
) -> tuple[Backend, ...]:
    """Return the backends of a `backends.yaml`, or of a list of GPUs such as `A100,A100,L40S`."""
    path = Path(text)
    if path.suffix in {".yaml", ".yml"}:
        return _configured(path)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("the fleet is empty: name a backends.yaml, or GPUs such as A100,A100,L40S")
    return add_gpus((), names, model_size_b, weight_bits)


def add_gpus(
    backends: tuple[Backend, ...],
    gpus: Iterable[str],
    model_size_b: float | None = None,
    weight_bits: int | None = None,
) -> tuple[Backend, ...]:
    """Return the fleet with one more backend for each GPU, named like `a100-0`."""
    taken = {backend.id for backend in backends}
    for gpu in gpus:
        try:
            profile = built_in(gpu, model_size_b, weight_bits)
        except KeyError as error:
            raise UsageError(error.args[0]) from None
        except ValueError as error:
            raise UsageError(str(error)) from None
        number = 0
        while (name := BackendId(f"{gpu.lower()}-{number}")) in taken:
            number += 1
        taken.add(name)
        backend = Backend(
            id=name, models=frozenset({MODEL}), profile=profile, priority_scheduling=True
        )
        backends = (*backends, backend)
    return backends


def _configured(path: Path) -> tuple[Backend, ...]:
    try:
        entries = load_settings(path).backends
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if not entries:
        raise UsageError(f"{path}: no backends are listed")
    return tuple(entry.to_core(frozenset({MODEL})) for entry in entries)


def policy_of(text: str) -> NamedPolicy:
    """Read a policy with settings of its own, such as `hexgen` or `hexgen:alpha=0.3`."""
    name, *changes = text.split(":")
    settings = PolicySettings()
    try:
        for change in changes:
            knob, _, value = change.partition("=")
            changed: dict[str, Any] = {knob: _knob(knob)(value)}
            settings = replace(settings, **changed)
        policy_from_name(name, settings)
    except ValueError as error:
        raise UsageError(f"policy '{text}': {error}") from None
    return NamedPolicy(label=text, name=name, settings=settings)


def _knob(name: str) -> Callable[[str], object]:
    if name not in PolicySettings.__dataclass_fields__:
        known = ", ".join(PolicySettings.__dataclass_fields__)
        raise ValueError(f"there is no setting '{name}' (there are {known})")
    return {"score": Score, "skip": int}.get(name, float)


def failure_of(text: str, backends: Sequence[Backend]) -> tuple[Fault, Fault]:
    """Read an outage such as `a100-0@300:600`: down from second 300 to second 600."""
    name, at, span = text.partition("@")
    begin, colon, end = span.partition(":")
    try:
        begins_at, ends_at = float(begin), float(end)
    except ValueError:
        begins_at = ends_at = 0.0
    if not (at and colon and 0 <= begins_at < ends_at and isfinite(ends_at)):
        raise UsageError(f"--fail {text}: write NAME@FROM:TO in seconds, such as a100-0@300:600")
    backend_id = _known(name, backends, "--fail")
    return (
        Fault(at=begins_at, backend_id=backend_id, kind=FaultKind.FAIL),
        Fault(at=ends_at, backend_id=backend_id, kind=FaultKind.RECOVER),
    )


def misprofile_of(text: str, backends: Sequence[Backend]) -> tuple[BackendId, float]:
    """Read a wrong belief such as `a100-0=2`: it takes twice as long as its profile says."""
    name, _, factor = text.partition("=")
    try:
        slowness = float(factor)
    except ValueError:
        slowness = 0.0
    if not 0 < slowness < 100:
        raise UsageError(f"--misprofile {text}: write NAME=FACTOR, such as a100-0=2 (or =0.5)")
    return _known(name, backends, "--misprofile"), slowness


def _known(name: str, backends: Sequence[Backend], option: str) -> BackendId:
    for backend in backends:
        if backend.id == name:
            return backend.id
    known = ", ".join(backend.id for backend in backends)
    raise UsageError(f"{option}: there is no backend '{name}' (there are {known})")


def positive(text: str) -> float:
    """Read a number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and isfinite(value)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


def positive_int(text: str) -> int:
    """Read a whole number above 0, for argparse."""
    value = positive(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
    return int(value)


def positives(text: str) -> list[float]:
    """Read numbers above 0 with commas in between, for argparse."""
    return [positive(part) for part in text.split(",")]


def output_file(text: str) -> Path:
    """Read where to write, for argparse: better a refusal now than after all the work."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written: there is no {path.parent}")
    return path


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command that simulates takes."""
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        required=True,
        metavar="FILE",
        help="what is played: a decision log of the gateway (decision_log: in backends.yaml), "
        "workflows as JSON lines, HexGen-Flow traces, or single calls as CSV",
    )
    add(
        "--fleet",
        required=True,
        metavar="FLEET",
        help="a backends.yaml, or GPUs such as A100,A100,A6000,L40S",
    )
    add(
        "--model-size-b",
        type=positive,
        metavar="B",
        help="billions of parameters: GPUs by data sheet instead of the fitted table (70B, 4 bits)",
    )
    add("--weight-bits", type=positive_int, metavar="BITS", help="with --model-size-b (default 16)")
    add("--workers", type=positive_int, metavar="N", help="processes (default: one a core)")
    add(
        "--cv",
        type=positive,
        default=1.0,
        metavar="CV",
        help="coefficient of variation of the gaps between arrivals; 1 is Poisson (default)",
    )


def pool_of(workers: int | None) -> ProcessPoolExecutor:
    """Return so many processes to simulate in; None: one a core."""
    return ProcessPoolExecutor(workers or os.cpu_count() or 1)


def alone(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
) -> int:
    """Run one command as a program of its own."""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    return run(parser.parse_args())


def complain(error: UsageError) -> int:
    """Say what is wrong; return the exit code."""
    sys.stderr.write(f"{error}\n")
    return USAGE_ERROR
