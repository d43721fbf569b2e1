"""`hexsage why ID`: why a request went where it went, and what came of it."""

import argparse
import json
import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.admin import EXIT_CODES, OK, Admin, GatewayError
from gateway.cli.admin import add_arguments as add_gateway
from gateway.cli.words import NONE, bar, count, duration

EPILOG = f"""\
examples:
  hexsage why req-7f3a                        (the x-request-id of any answer)
  hexsage why req-7f3a --json | jq .attempts
  HEXSAGE_ADMIN_KEY=... hexsage why hs-5a1c-2f --url https://gateway.example:8443

{EXIT_CODES}"""
BAR_WIDTH = 16
STYLES = {"chosen": "bold cyan", "worse": "default", "tie": "default", "next": "default"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Say why a running gateway sent a request where it did: the score of every candidate, why "
        "others were not taken, what was predicted and what came of it."
    )
    parser.epilog = EPILOG
    parser.add_argument("id", help="the request's x-request-id, the client's own or the gateway's")
    add_gateway(parser)
    parser.add_argument("--json", action="store_true", help="everything that is known, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; return the exit code."""
    try:
        with Admin(arguments.url) as admin:
            request = admin.get("requests", arguments.id)
    except GatewayError as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    if arguments.json:
        sys.stdout.write(json.dumps(request, indent=2) + "\n")
    else:
        show(request, Console(highlight=False))
    return OK


def show(request: dict[str, Any], console: Console) -> None:
    """Print a request for people."""
    console.print(_title(request))
    console.print(_facts(request))
    if request["waiting"] is not None:
        waits = request["waiting"]
        console.print(Text(f"waits since {duration(waits['since_ms'])} for {waits['for']}"))
        if waits["candidates"]:
            console.print(_candidates(waits["candidates"]))
    for attempt in request["attempts"]:
        console.print(_attempt(attempt))
        console.print(_candidates(attempt["candidates"]))


def _title(request: dict[str, Any]) -> Text:
    title = Text(request["client_request_id"] or request["request_id"], style="bold")
    if request["client_request_id"]:
        title.append(f"  {request['request_id']}", style="dim")
    ended = request["outcome"]
    style = "bold" if ended in (None, "completed") else "bold red"
    title.append(f"\n{ended or request['state']}", style=style)
    if request["reason"]:
        title.append(f": {request['reason']}", style=style)
    if request["backend"]:
        title.append(f" on {request['backend']}")
    if request["total_ms"] is not None:
        title.append(f", {duration(request['total_ms'])} in all")
    if request["retry_after_ms"] is not None:
        title.append(f", worth another try after {duration(request['retry_after_ms'])}")
    return title


def _facts(request: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, value in _lines(request):
        table.add_row(name, Text(value))
    return table


def _after_arrival(ms: float | None) -> str:
    return NONE if ms is None else f"{duration(ms)} after arrival"


def _lines(request: dict[str, Any]) -> list[tuple[str, str]]:
    predicted, actual = request["predicted"], request["actual"] or {}
    tokens = f"{count(predicted['output_tokens_mean'])} predicted"
    if predicted["output_tokens_p50"] is not None:
        tokens += f" (P50 {count(predicted['output_tokens_p50'])}, "
        tokens += f"P90 {count(predicted['output_tokens_p90'])})"
    lines = [
        ("model", f"{request['model']}, tenant {request['tenant']}"),
        ("workflow", _workflow(request)),
        ("waited", duration(_waited_ms(request))),
        ("tokens", f"{tokens}, {count(actual.get('output_tokens'))} came"),
        (
            "execution",
            f"{duration(predicted['execution_ms'])} predicted, "
            f"{duration(actual.get('execution_ms'))} real",
        ),
        ("first token", _after_arrival(actual.get("first_token_ms"))),
    ]
    deadline = request["deadline"]
    if deadline is not None:
        met = {True: "met", False: "missed", None: "open"}[deadline["met"]]
        lines += [
            ("deadline", f"{duration(deadline['in_ms'])} after arrival, {met}"),
            (
                "budget",
                f"{duration(deadline['budget_ms'])}, laxity {duration(deadline['laxity_ms'])}",
            ),
        ]
    return lines


def _waited_ms(request: dict[str, Any]) -> float | None:
    waiting = request["waiting"]
    waited_ms: float | None = waiting["since_ms"] if waiting else request["queue_ms"]
    return waited_ms


def _workflow(request: dict[str, Any]) -> str:
    if request["workflow"] is None:
        return NONE
    parts = [request["workflow"]]
    if request["workflow_name"]:
        parts.append(f"({request['workflow_name']})")
    if request["stage"]:
        parts.append(f"stage {request['stage']}")
    return " ".join(parts)


def _attempt(attempt: dict[str, Any]) -> Text:
    text = Text(f"\nattempt {attempt['number']}: sent to {attempt['backend']}", style="bold")
    text.append(
        f"  {duration(attempt['started_ms'])} after arrival, by {attempt['policy']}", style="dim"
    )
    if attempt["passed_over"]:
        text.append(f", passed over {attempt['passed_over']} times before", style="dim")
    if attempt["failure"]:
        text.append(
            f"\nfailed after {duration(attempt['ran_ms'])}: {attempt['failure']}", style="red"
        )
    return text


def _candidates(candidates: list[dict[str, Any]]) -> Table:
    worst = max((one["score"] or 0.0 for one in candidates), default=0.0)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend")
    table.add_column("score", justify="right")
    table.add_column("lower is better", min_width=BAR_WIDTH)
    table.add_column("")
    table.add_column("why")
    for one in candidates:
        score = one["score"]
        drawn = "" if score is None or worst <= 0 else bar(score / worst, BAR_WIDTH)
        table.add_row(
            Text(one["backend"]),
            NONE if score is None else f"{score:.4g}",
            drawn,
            one["verdict"].replace("_", " "),
            Text(one["why"]),
            style=STYLES.get(one["verdict"], "dim"),
        )
    return table
