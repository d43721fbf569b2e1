"""`hexsage tune`: the settings of a policy that serve a trace best, or "leave it"."""

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.cli import inputs
from gateway.cli.inputs import OK, UsageError
from gateway.core.policies import DEFAULT_POLICY
from gateway.sim.experiment import Cell, Workload, measure_all
from gateway.tuner.search import Finding, Objective, Search, candidates, search
from gateway.tuner.tuner import told

LEAVE_IT = 3

DESCRIPTION = """\
Try a policy's settings on a trace, in simulation, and say which is best for a fleet.

A first round plays every candidate, one knob changed at a time. A second plays the best against
the present setting on fresh seeds; only a gain beyond noise is recommended (95 % paired bootstrap,
and at least 2 %). The running gateway does the same by itself on recent traffic."""

EPILOG = """\
examples:
  hexsage tune --trace decisions.jsonl --fleet backends.yaml --policy hexgen
  hexsage tune --trace trace.json --fleet A100,A6000 --policy hexgen:alpha=0.8 --load 0.9
  hexsage tune --trace trace.json --fleet A100,L40S --objective attainment --json curve.json

exit codes: 0 there is a better setting, 2 the arguments or the trace make no sense,
3 leave it: nothing is better for sure"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hexsage tune`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    inputs.add_trace_arguments(parser)
    add = parser.add_argument
    add(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help="what to tune, with the present settings where they are not the default, as in "
        "hexgen:alpha=0.8 (default: %(default)s)",
    )
    add(
        "--objective",
        choices=[objective.value for objective in Objective],
        default=Objective.P95.value,
        help="what better means (default: %(default)s)",
    )
    add(
        "--load",
        type=inputs.positive,
        default=0.8,
        metavar="X",
        help="arrival rate over the fleet's capacity (default: %(default)s)",
    )
    add(
        "--count",
        type=inputs.positive_int,
        default=300,
        metavar="N",
        help="workflows a run (default: %(default)s)",
    )
    add(
        "--seeds",
        type=inputs.positive_int,
        default=8,
        metavar="N",
        help="runs of either setting in the second round (default: %(default)s)",
    )
    add("--json", type=inputs.output_file, metavar="FILE", help="write what was found")


def run(arguments: argparse.Namespace) -> int:
    """Search and print; return the exit code."""
    try:
        plan = _plan(arguments)
    except UsageError as error:
        return inputs.complain(error)
    with inputs.pool_of(arguments.workers) as pool:
        finding = search(plan, partial(measure_all, pool=pool))
    _print(finding, Console())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(finding), indent=2) + "\n", encoding="utf-8")
    return LEAVE_IT if finding.winner is None else OK


def _plan(arguments: argparse.Namespace) -> Search:
    policy = inputs.policy_of(arguments.policy)
    if not candidates(policy.name, policy.settings):
        raise UsageError(f"policy '{policy.name}' has no settings to tune")
    backends = inputs.fleet_of(arguments.fleet, arguments.model_size_b, arguments.weight_bits)
    workload = Workload.split(arguments.trace.stem, inputs.load_trace(arguments.trace))
    base = Cell(
        workload=workload,
        backends=backends,
        policy=policy.name,
        settings=policy.settings,
        rate_per_s=arguments.load * inputs.capacity_of(workload, backends),
        seed=0,
        count=arguments.count,
        cv=arguments.cv,
        deadline_s=inputs.deadline_s_of(workload, backends),
    )
    objective = Objective(arguments.objective)
    return Search(base=base, objective=objective, confirm_seeds=arguments.seeds)


def _print(finding: Finding, console: Console) -> None:
    is_share = finding.objective is Objective.ATTAINMENT
    table = Table(
        box=SIMPLE_HEAD, title=f"{finding.policy}, first round (simulated)", title_justify="left"
    )
    table.add_column("setting")
    table.add_column(finding.objective.value + ("" if is_share else " [s]"), justify="right")
    table.add_column("better by", justify="right")
    for point in finding.curve:
        gain = point.gain
        value = f"{point.value:.1%}" if is_share else f"{point.value:.2f}"
        table.add_row(point.label, value, f"{gain.mean:+.1%} [{gain.low:+.1%}, {gain.high:+.1%}]")
    console.print(table)
    console.print(told(finding), markup=False)


if __name__ == "__main__":
    sys.exit(inputs.alone(add_arguments, run))
