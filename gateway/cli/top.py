"""`hexsage top`: a running gateway, live in the terminal."""

import argparse
import sys
import time
from contextlib import suppress
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli.admin import EXIT_CODES, OK, Admin, GatewayError
from gateway.cli.admin import add_arguments as add_gateway
from gateway.cli.words import NONE, bar, count, duration, percent, rate, several

EPILOG = f"""\
examples:
  hexsage top
  hexsage top --interval 5 --url http://gateway:8080
  HEXSAGE_ADMIN_KEY=... hexsage top --once          (one frame, for a log or a ticket)

Ctrl-C ends it. {EXIT_CODES}"""
BAR_WIDTH = 4
"""The fleet's table fits 80 columns, with names of a dozen letters."""
MAX_QUEUES = 8
MAX_WORKFLOWS = 12
TONES = {"up": "cyan", "draining": "yellow", "down": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Watch a running gateway: its fleet, queues, workflows and rates."
    parser.epilog = EPILOG
    add_gateway(parser)
    parser.add_argument("--interval", type=_interval, default=1.0, help="seconds (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(arguments: argparse.Namespace) -> int:
    """Show frames until interrupted; return the exit code."""
    console = Console(highlight=False)
    try:
        with suppress(KeyboardInterrupt), Admin(arguments.url) as admin:
            shown = frame(admin.get("overview"), admin.url)
            if arguments.once:
                console.print(shown)
            else:
                _watch(admin, shown, arguments.interval, console)
    except GatewayError as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    return OK


def _watch(admin: Admin, shown: RenderableType, interval_s: float, console: Console) -> None:
    with Live(shown, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                shown = frame(admin.get("overview"), admin.url)
                live.update(shown, refresh=True)
            except GatewayError as error:
                # What was seen last stays, with the reason why it is old.
                live.update(Group(Text(f"✕ {error}", style="bold red"), shown), refresh=True)


def frame(overview: dict[str, Any], url: str) -> RenderableType:
    """Return one frame."""
    return Group(
        _head(overview, url),
        _fleet(overview["backends"]),
        _queues(overview["queues"]),
        _workflows(overview),
    )


def _head(overview: dict[str, Any], url: str) -> Text:
    policy, rates = overview["policy"], overview["rates"]
    alpha = "" if policy["alpha"] is None else f", alpha {policy['alpha']:g}"
    text = Text("HexSage", style="bold")
    text.append(
        f"  {url}  {policy['name']}{alpha}, up {duration(overview['uptime_ms'])}", style="dim"
    )
    if overview["missing"]:
        text.append(f"  ▲ not ready: {overview['missing']}", style="bold red")
    text.append(
        f"\n{count(overview['in_flight'])} in engines, {count(overview['queued'])} waiting; "
        f"calls/s: {rate(rates['arrived_per_s'])} come, {rate(rates['completed_per_s'])} done"
    )
    if rates["failed_per_s"]:
        text.append(f", {rate(rates['failed_per_s'])} failing", style="red")
    text.append(f"; {rate(rates['output_tokens_per_s'])} tokens/s")
    text.append(
        f"\ncall P50 {duration(rates['call_ms_p50'])}, P95 {duration(rates['call_ms_p95'])}, "
        f"queue P95 {duration(rates['queue_ms_p95'])}; "
        f"deadlines met {percent(rates['attainment'])} "
        f"({count(rates['met'])} of {count(rates['met'] + rates['late'])} in five minutes)"
    )
    return text


def _fleet(backends: list[dict[str, Any]]) -> RenderableType:
    if not backends:
        return Text("\nno backends", style="dim")
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("backend", "gpu", "state"):
        table.add_column(name, overflow="fold")
    table.add_column("in flight", justify="right", no_wrap=True)
    table.add_column("KV budget", no_wrap=True)
    for name in ("backlog", "decode", "prefill"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in backends:
        share = one["kv_reserved_tokens"] / (one["kv_budget_tokens"] or one["kv_tokens"])
        state, style = _state(one)
        table.add_row(
            Text(one["name"], style="bold"),
            Text(one["gpu"]),
            Text(state, style=style),
            f"{count(one['in_flight'])}/{count(one['slots'])}",
            f"{bar(share, BAR_WIDTH)} {percent(share)}",
            duration(one["backlog_ms"]),
            _speed(one["learned"]["decode"]),
            _speed(one["learned"]["prefill"]),
        )
    return Group("", table, "")


def _state(backend: dict[str, Any]) -> tuple[str, str]:
    if backend["state"] == "up" and backend["breaker"] != "closed":
        return f"▲ breaker {backend['breaker'].replace('_', ' ')}", "red"
    if backend["state"] == "up" and backend["ramp"] < 1:
        return f"recovering {percent(backend['ramp'])}", "yellow"
    return backend["state"], TONES.get(backend["state"], "default")


def _speed(correction: dict[str, Any]) -> str:
    """Return how much slower (+) or faster (-) than configured a part turned out to be."""
    if not correction["samples"]:
        return NONE
    return f"{(correction['factor'] - 1) * 100:+.0f} %"


def _queues(queues: list[dict[str, Any]]) -> RenderableType:
    if not queues:
        return Text("nothing waits", style="dim")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    table.add_column("tenant")
    for name in ("waiting", "held", "oldest", "work"):
        table.add_column(name, justify="right")
    for one in queues[:MAX_QUEUES]:
        table.add_row(
            Text(one["model"]),
            Text(one["tenant"]),
            count(one["waiting"]),
            count(one["held"]),
            duration(one["oldest_ms"]),
            duration(one["predicted_ms"]),
        )
    return table


def _workflows(overview: dict[str, Any]) -> RenderableType:
    told = overview["workflows"]
    title = Text(
        f"\n{several(overview['open_workflows'], 'workflow')} open, {count(told['late'])} late, "
        f"{count(told['at_risk'])} about to be"
    )
    if not told["open"]:
        return title
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("workflow")
    table.add_column("name")
    table.add_column("does")
    for name in ("calls", "since", "deadline in"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in told["open"][:MAX_WORKFLOWS]:
        due_ms = None if one["deadline_ms"] is None else one["deadline_ms"] - one["elapsed_ms"]
        need, style = _need(one)
        table.add_row(
            Text(one["id"]),
            Text(one["name"] or NONE),
            one["doing"],
            count(one["calls"]),
            duration(one["elapsed_ms"]),
            duration(due_ms),
            Text(need, style=style),
        )
    return Group(title, table)


def _need(run: dict[str, Any]) -> tuple[str, str]:
    if run["is_late"]:
        return "▲ late", "bold red"
    if run["is_at_risk"]:
        return f"△ late by {duration(run['done_ms'] - run['deadline_ms'])}, predicted", "yellow"
    return "", "default"


def _interval(text: str) -> float:
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = 0.0
    if not 0 < interval_s < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return interval_s
