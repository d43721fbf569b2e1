"""`hexsage simulate`: policies compared on a trace, the real scheduler on modelled engines."""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway import __version__
from gateway.cli import inputs
from gateway.cli.comparison import AS_GIVEN, Plan, Ratio, Row, Variant, to_csv, truths
from gateway.cli.inputs import OK, UsageError
from gateway.core.types import Backend
from gateway.sim.experiment import Workload, measure_all

DEFAULT_POLICIES = "round_robin+fcfs,least_backlog+fcfs,weighted_jsq+fcfs,hexgen,hexsage"

DESCRIPTION = """\
Play a trace against the gateway's own scheduler and modelled engines, under several policies.

Arrivals are drawn from the trace: the same for every policy, given the seed. Load 1 is what the
fleet completes when everything waits. Half of the trace is what the gateway has seen before, the
other half is played. Ratios have 95 % bootstrap intervals over the seeds. Simulated, not measured
on GPUs: it tells policies and fleets apart, not seconds."""

EPILOG = """\
examples:
  hexsage simulate --trace decisions.jsonl --fleet backends.yaml
  hexsage simulate --trace trace.json --fleet A100,A100,A6000,L40S --load .4,.8,1.1
  hexsage simulate --trace trace.json --fleet A100,A6000 --add L40S --policies hexsage
  hexsage simulate --trace trace.json --fleet A100,A100 --fail a100-0@300:600 --json out.json
  hexsage simulate --trace trace.json --fleet A100,A6000 --policies hexgen:alpha=0.3,hexsage

exit codes: 0 done, 2 the arguments or the trace make no sense"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hexsage simulate`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    inputs.add_trace_arguments(parser)
    add = parser.add_argument
    add(
        "--policies",
        default=DEFAULT_POLICIES,
        metavar="A,B",
        help="names, with settings where wanted, as in hexgen:alpha=0.3; ratios are to the first "
        "(default: %(default)s)",
    )
    add(
        "--load",
        type=inputs.positives,
        default=[0.4, 0.8, 1.1],
        metavar="X,Y",
        help="arrival rate over the fleet's capacity (default: .4,.8,1.1)",
    )
    add(
        "--seeds", type=inputs.positive_int, default=5, metavar="N", help="runs of each (default 5)"
    )
    add(
        "--count",
        type=inputs.positive_int,
        default=300,
        metavar="N",
        help="workflows (or single calls) a run (default: %(default)s)",
    )
    add("--add", action="append", default=[], metavar="GPU", help="what if: one backend more")
    add(
        "--fail",
        action="append",
        default=[],
        metavar="NAME@FROM:TO",
        help="what if: a backend is down between two seconds, its work is retried",
    )
    add(
        "--misprofile",
        action="append",
        default=[],
        metavar="NAME=FACTOR",
        help="what if: a backend takes FACTOR times as long as its profile says",
    )
    add(
        "--no-learning",
        action="store_true",
        help="profiles are not corrected by what is seen of the engines",
    )
    add(
        "--json",
        type=inputs.output_file,
        metavar="FILE",
        help="write everything; - is standard output",
    )
    add(
        "--csv",
        type=inputs.output_file,
        metavar="FILE",
        help="write the table; - is standard output",
    )
    add("--png", type=inputs.output_file, metavar="FILE", help="draw P95 latency over load")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print; return the exit code."""
    try:
        plan = _plan(arguments)
    except UsageError as error:
        return inputs.complain(error)
    with inputs.pool_of(arguments.workers) as pool:
        cards = measure_all(plan.cells(), pool)
    rows = plan.rows(cards)
    # What goes to standard output must stand there alone.
    piped = Path("-") in {arguments.json, arguments.csv}
    _print(plan, rows, Console(stderr=piped), str(arguments.trace))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(_record(plan, rows, arguments), indent=2) + "\n")
    if arguments.csv is not None:
        _write(arguments.csv, to_csv(rows))
    if arguments.png is not None:
        from gateway.cli.figure import png  # matplotlib takes a second to import

        arguments.png.write_bytes(png(rows))
    return OK


def _plan(arguments: argparse.Namespace) -> Plan:
    policies = tuple(inputs.policy_of(text) for text in arguments.policies.split(","))
    if len({policy.label for policy in policies}) < len(policies):
        raise UsageError("--policies names a policy twice")
    size = (arguments.model_size_b, arguments.weight_bits)
    backends = inputs.fleet_of(arguments.fleet, *size)
    variants = [Variant(label=AS_GIVEN, backends=backends)]
    if arguments.add or arguments.fail or arguments.misprofile:
        variants.append(_what_if(arguments, inputs.add_gpus(backends, arguments.add, *size)))
    workload = Workload.split(arguments.trace.stem, inputs.load_trace(arguments.trace))
    return Plan(
        workload=workload,
        variants=tuple(variants),
        policies=policies,
        loads=tuple(arguments.load),
        capacity_per_s=inputs.capacity_of(workload, backends),
        seeds=arguments.seeds,
        count=arguments.count,
        cv=arguments.cv,
        learns_profiles=not arguments.no_learning,
    )


def _what_if(arguments: argparse.Namespace, backends: tuple[Backend, ...]) -> Variant:
    faults = [fault for text in arguments.fail for fault in inputs.failure_of(text, backends)]
    wrong = [inputs.misprofile_of(text, backends) for text in arguments.misprofile]
    parts = [f"+{gpu}" for gpu in arguments.add]
    parts += [f"{text} down" for text in arguments.fail]
    parts += [f"{text} slow" for text in arguments.misprofile]
    return Variant(
        label=", ".join(parts),
        backends=backends,
        engines=truths(backends, wrong),
        faults=tuple(faults),
    )


def _print(plan: Plan, rows: list[Row], console: Console, trace: str) -> None:
    console.print(
        f"Simulated, not measured: {trace}, {len(plan.variants[0].backends)} backends, load 1 = "
        f"{plan.capacity_per_s:.3g} workflows/s, {plan.count} a run, {plan.seeds} seeds, "
        f"cv {plan.cv:g}, HexSage {__version__}"
    )
    console.print(f"P95 lower by: {plan.policies[0].label}'s P95 over this policy's.", markup=False)
    if len(plan.variants) > 1:
        console.print("with / without: P95 in this case over P95 as given.")
    for variant in plan.variants:
        console.print(_table(plan, [row for row in rows if row.variant == variant.label], variant))


def _table(plan: Plan, rows: list[Row], variant: Variant) -> Table:
    """Return what fits 80 columns of the rows; the files have the rest."""
    is_what_if = variant is not plan.variants[0]
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        title=f"\n{variant.label}",
        title_justify="left",
    )
    table.add_column("load", no_wrap=True, min_width=4)
    table.add_column("policy", no_wrap=True)
    headers = ["P95 s", "on time", "P95 lower by"]
    headers = [*headers, "with / without"] if is_what_if else ["mean s", *headers, "done/s"]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    load = None
    for row in rows:
        if load is not None and row.load != load:
            table.add_section()
        load = row.load
        cells = [f"{row.p95_s:.1f}", f"{row.on_time:.1%}", _told(row.p95_lower_by)]
        if is_what_if:
            cells = [*cells, _told(row.what_if_p95)]
        else:
            cells = [f"{row.mean_s:.1f}", *cells, f"{row.completed_per_s:.3g}"]
        table.add_row(f"{row.load:g}", row.policy, *cells)
    return table


def _told(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.mean:.2f} [{ratio.low:.2f},{ratio.high:.2f}]"


def _record(plan: Plan, rows: list[Row], arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "hexsage": __version__,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "measured": "simulated, not measured on GPUs",
        "trace": str(arguments.trace),
        "capacity_workflows_per_s": plan.capacity_per_s,
        "seeds": list(range(plan.seeds)),
        "workflows_a_run": plan.count,
        "cv": plan.cv,
        "learns_profiles": plan.learns_profiles,
        "backends": {
            variant.label: [
                asdict(backend.profile) | {"id": backend.id} for backend in variant.backends
            ]
            for variant in plan.variants
        },
        "rows": [asdict(row) for row in rows],
    }


def _write(path: Path, text: str) -> None:
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(inputs.alone(add_arguments, run))
