"""loadgen on the command line: sweep, replay, compare."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from gateway import __version__
from gateway.core.profiles import built_in
from gateway.sim.trace import TraceError
from loadgen import render
from loadgen.compare import cell_lines, shared_figures
from loadgen.measure import Options, measure
from loadgen.results import ResultError, read
from loadgen.sweep import Policy, TargetError
from loadgen.workloads import WORKLOADS

EXIT_CODES = """\
exit codes:
  0    measured, report written
  1    measured, report written, but calls failed (the report says how)
  2    a flag or a file is wrong
  3    the target cannot be reached, or refuses what was asked of it
  130  interrupted; what was measured until then is written
"""
FILE_WIDTH = 160
SWEEP_EXAMPLES = """\
examples:
  loadgen sweep --target http://127.0.0.1:8080 --qps 0.1,0.2,0.3 \\
      --policies round_robin+fcfs,hexgen:alpha=0.3 --workflows 200 --out report
  loadgen sweep --target http://127.0.0.1:8000 --qps 2 --workload chat --real --stream \\
      --api-key-env OPENAI_API_KEY --out report          (any OpenAI-compatible server)
  loadgen sweep --qps 4 --speed 20 ...    engines emulated 20 times faster than real: rates,
      deadlines and times stay those of the real engines, only the clock on the wall is shorter

"""
REPLAY_EXAMPLES = """\
examples:
  loadgen replay --target http://127.0.0.1:8080 --trace trace.jsonl --out report
  loadgen replay --target http://127.0.0.1:8080 --trace text2sql.json --qps 0.2 --out report

"""
COMPARE_EXAMPLES = """\
examples:
  loadgen compare before/result.json after/result.json
  loadgen compare vllm-bench.json report/result.json      (calls only, by shared keys)

"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except (TraceError, ResultError) as error:
        return _complain(str(error), 2)
    except TargetError as error:
        return _complain(str(error), 3)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def _measure(arguments: argparse.Namespace) -> int:
    try:
        options = _options(arguments)
    except ValueError as error:
        return _complain(str(error), 2)
    result = measure(options, Console(stderr=True))
    console = _console()
    render.to_terminal(result, console)
    console.print(f"report: {options.out / 'report.html'}", highlight=False)
    return 1 if any(cell.failures for cell in result.cells) else 0


def _compare(arguments: argparse.Namespace) -> int:
    first, second = read(arguments.first), read(arguments.second)
    if isinstance(first, dict) or isinstance(second, dict):
        header, rows = shared_figures(first, second)
    else:
        header, rows = cell_lines(first, second)
    if not rows:
        raise ResultError(
            f"{arguments.first} and {arguments.second} have no rate in common to compare"
        )
    grid = Table()
    for number, name in enumerate(header):
        grid.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    _console().print(grid)
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    for flag in ("api_key_env", "admin_key_env"):
        name = getattr(arguments, flag)
        if name and name not in os.environ:
            raise ValueError(f"--{flag.replace('_', '-')}: there is no variable {name}")
    return Options(
        title=arguments.title,
        url=arguments.target,
        model=arguments.model,
        api_key=os.environ.get(arguments.api_key_env or ""),
        admin_key=os.environ.get(arguments.admin_key_env or "HEXSAGE_ADMIN_KEY"),
        policies=arguments.policies,
        label=arguments.label,
        workload=arguments.workload,
        traces=tuple(arguments.trace or ()),
        qps=arguments.qps,
        workflows=arguments.workflows,
        cv=arguments.cv,
        seed=arguments.seed,
        repeats=arguments.repeats,
        gpus=arguments.gpus,
        slo_scale=arguments.slo_scale,
        warmup=arguments.warmup,
        speed=arguments.speed,
        is_streaming=arguments.stream,
        is_real=arguments.real,
        timeout_s=arguments.timeout_s,
        out=arguments.out,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadgen",
        description="Open-loop load with workflows and deadlines for OpenAI-compatible servers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"loadgen {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{sweep,replay,compare}")
    sweep = _command(commands, "sweep", "compare policies over rates", SWEEP_EXAMPLES)
    sweep.set_defaults(command=_measure)
    sweep.add_argument(
        "--qps", type=_rates, required=True, help="rates in workflows/s, as in 0.5,1,2"
    )
    sweep.add_argument(
        "--workload", choices=sorted(WORKLOADS), default="text2sql", help="(default: text2sql)"
    )
    sweep.add_argument(
        "--trace", type=Path, action="append", help="recorded workflows instead; may be repeated"
    )
    sweep.add_argument(
        "--workflows", type=_count, default=200, help="workflows a run (default: 200)"
    )
    _shared_flags(sweep)

    replay = _command(commands, "replay", "replay recorded workflows", REPLAY_EXAMPLES)
    replay.set_defaults(command=_measure, workload="", workflows=None)
    replay.add_argument("--trace", type=Path, action="append", required=True, help="repeatable")
    replay.add_argument(
        "--qps", type=_rates, default=(), help="rates instead of the recorded instants"
    )
    _shared_flags(replay)

    compare = _command(commands, "compare", "compare two result files", COMPARE_EXAMPLES)
    compare.set_defaults(command=_compare)
    compare.add_argument("first", type=Path, metavar="A.json", help="the baseline")
    compare.add_argument("second", type=Path, metavar="B.json")
    return parser


def _command(commands: Any, name: str, does: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=does,
        description=does,
        epilog=examples + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _shared_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=_url, required=True, help="the server's base URL, without /v1")
    add("--out", type=Path, required=True, help="folder for report.html, result.json, PNGs, ...")
    add("--policies", type=_policies, default=(), help="as in a,b:alpha=0.3; the first is baseline")
    add("--label", default="as it is", help="name of the run when no policies are set")
    add("--model", help="(default: the first that /v1/models lists)")
    add("--seed", type=int, default=1, help="same seed, same plan (default: 1)")
    add("--repeats", type=_count, default=1, help="seeds a cell, from --seed on (default: 1)")
    add("--cv", type=_not_negative, default=1.0, help="of gaps: 1 Poisson, above bursty")
    add("--slo-scale", type=_positive, default=3.0, help="deadline in multiples of T0 (default: 3)")
    add(
        "--gpus",
        type=_gpus,
        default="A100,A100,A6000,L40S",
        help="fleet for T0 (default: %(default)s)",
    )
    add("--warmup", type=_cut, default=0.15, help="share cut from each end (default: 0.15)")
    add("--speed", type=_positive, default=1.0, help="engines are this much faster than real")
    add("--stream", action="store_true", help="stream, and measure TTFT")
    add("--real", action="store_true", help="real engines: answer lengths are not asked for")
    add("--timeout-s", type=_positive, default=1800.0, help="of a call, engine seconds")
    add("--api-key-env", metavar="NAME", help="variable that holds the API key")
    add("--admin-key-env", metavar="NAME", help="(default: HEXSAGE_ADMIN_KEY, if set)")
    add("--title", default="Load test", help="of the report")


def _rates(text: str) -> tuple[float, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _positive(text: str) -> float:
    number = _not_negative(text)
    if number == 0:
        raise argparse.ArgumentTypeError(f"'{text}' must be above 0")
    return number


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' must be a number of at least 0")
    return number


def _cut(text: str) -> float:
    share = _not_negative(text)
    if share >= 0.5:
        raise argparse.ArgumentTypeError("a share below 0.5 must be left of each end")
    return share


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def _policies(text: str) -> tuple[Policy, ...]:
    try:
        policies = tuple(Policy.parse(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if len({policy.label for policy in policies}) < len(policies):
        raise argparse.ArgumentTypeError("a policy is named twice")
    return policies


def _gpus(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    try:
        for name in names:
            built_in(name)
    except KeyError as error:
        raise argparse.ArgumentTypeError(error.args[0]) from None
    return names


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise argparse.ArgumentTypeError(f"'{text}' is not like http://127.0.0.1:8080")
    return text.rstrip("/").removesuffix("/v1")


def _console() -> Console:
    """Return standard output, wide enough for every column where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"loadgen: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
