"""Report -> terminal table, Markdown, one self-contained HTML page (pure but for the terminal)."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.pairing import Comparison
from loadgen.report import Cell, warnings_of
from loadgen.results import Result
from loadgen.statistics import Ratio

CAPTIONS = {
    "latency": "Workflow latency, from planned arrival to the end of the last call.",
    "attainment": (
        "Share of workflows that would have met a deadline of so many times T0, the mean "
        "unloaded critical path. The dotted line is the deadline that was announced."
    ),
    "goodput": (
        "Workflows that met their deadline, a second; and all that completed, from the first "
        "arrival to the last answer of a run. Dotted: what was offered."
    ),
    "stages": "Where the time goes: calls by stage, from sent to last token.",
    "slowest": (
        "The slowest workflow of the first policy at the highest rate, and the same workflow, "
        "with the same arrivals around it, under the others. A bar is a call."
    ),
}
HEADER = (
    "rate /s",
    "policy",
    "n",
    "P50 s",
    "P95 s",
    "P99 s",
    "mean s",
    "P95 lower by",
    "on time",
    "good /s",
    "done /s",
    "TTFT s",
    "TTLT s",
    "failed",
)
TERMINAL_TABLES = (
    ("Workflow latency", ("P50 s", "P95 s", "P99 s", "mean s", "P95 lower by")),
    (
        "Rates, and calls",
        ("n", "on time", "good /s", "done /s", "TTFT s", "TTLT s", "failed"),
    ),
)
"""Two tables, as one would be too wide for 80 columns."""


def table(result: Result) -> list[tuple[str, ...]]:
    """Return a row a cell under HEADER, rate by rate, the policies in their given order."""
    policies = list(dict.fromkeys(cell.policy for cell in result.cells))
    versus = {(one.policy, one.qps): one for one in result.comparisons}
    ordered = sorted(result.cells, key=lambda cell: (cell.rate_per_s, policies.index(cell.policy)))
    return [_row(cell, versus.get((cell.policy, cell.qps))) for cell in ordered]


def sentences(result: Result) -> list[str]:
    """Say in words what each policy gains over the first, rate by rate."""
    rates = {cell.qps: cell.rate_per_s for cell in result.cells}
    gains: dict[tuple[str, str], list[str]] = {}
    for one in result.comparisons:
        if one.p95 is not None:
            text = f"{_gain(one.p95)} at {rates[one.qps]:.3g}/s"
            gains.setdefault((one.policy, one.baseline), []).append(text)
    return [
        f"{policy} against {baseline}: P95 workflow latency {'; '.join(texts)}."
        for (policy, baseline), texts in gains.items()
    ]


def to_terminal(result: Result, console: Console) -> None:
    """Print the tables, what they say in words, and what to beware of."""
    header, body = _measured(table(result))
    rows = [dict(zip(header, row, strict=True)) for row in body]
    for title, columns in TERMINAL_TABLES:
        grid = Table(
            title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
        )
        names = ("rate /s", "policy", *(name for name in columns if name in header))
        for name in names:
            grid.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
        rate = rows[0]["rate /s"] if rows else ""
        for row in rows:
            if row["rate /s"] != rate:
                grid.add_section()
                rate = row["rate /s"]
            grid.add_row(*(Text(row[name]) for name in names))
        console.print(grid)
    for text in (*sentences(result), _deadline(result)):
        console.print(text, highlight=False, markup=False)
    for warning in warnings_of(result.cells):
        console.print(f"beware: {warning}", style="yellow", highlight=False, markup=False)


def to_markdown(result: Result) -> str:
    """Return the table and settings as Markdown."""
    lines = [
        f"# {result.settings['title']}",
        "",
        *_markdown_table(*_measured(table(result))),
        "",
    ]
    lines += [_deadline(result), ""]
    lines += [f"- {sentence}" for sentence in sentences(result)]
    lines += [f"- Beware: {warning}" for warning in warnings_of(result.cells)]
    settings = [(name, _text(value)) for name, value in result.settings.items()]
    return "\n".join([*lines, "", *_markdown_table(("setting", "value"), settings), ""])


def to_html(result: Result, svgs: Mapping[str, bytes]) -> str:
    """Return the whole report as one page that needs nothing else."""
    page = Template(files("loadgen").joinpath("report.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(str(result.settings["title"])),
        sentences=_items(sentences(result), "finding"),
        warnings=_items(warnings_of(result.cells), "warning"),
        table=_html_table(*_measured(table(result))),
        deadline=escape(_deadline(result)),
        figures="\n".join(_html_figure(name, svg) for name, svg in svgs.items()),
        settings=_html_table(
            ("setting", "value"), [(name, _text(value)) for name, value in result.settings.items()]
        ),
    )


def _measured(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows without the columns in which nothing was measured."""
    kept = [place for place in range(len(HEADER)) if any(row[place] != "-" for row in rows)]
    return [HEADER[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _row(cell: Cell, versus: Comparison | None) -> tuple[str, ...]:
    latency = cell.workflow
    return (
        f"{cell.rate_per_s:.3g}",
        cell.policy,
        str(len(cell.measured)),
        *(
            (_s(latency.p50_s), _s(latency.p95_s), _s(latency.p99_s), _s(latency.mean_s))
            if latency
            else ("-",) * 4
        ),
        _times(versus.p95) if versus and versus.p95 else "-",
        f"{cell.deadline_attainment:.0%}",
        f"{cell.goodput_per_s:.3f}",
        f"{cell.throughput_per_s:.3f}",
        _s(cell.ttft.mean_s) if cell.ttft else "-",
        _s(cell.ttlt.mean_s) if cell.ttlt else "-",
        str(sum(cell.failures.values())),
    )


def _gain(ratio: Ratio) -> str:
    interval = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    if not ratio.is_significant:
        return f"no different beyond noise (ratio {ratio.value:.2f} {interval})"
    if ratio.value > 1:
        return f"{ratio.value:.2f}x {interval} lower"
    return f"{1 / ratio.value:.2f}x [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}] higher"


def _deadline(result: Result) -> str:
    return (
        f"Times are engine seconds. T0 = {result.base_s:.1f} s, the mean unloaded critical path; "
        f"deadline = {result.slo_scale:g} x T0. Intervals: 95 %, paired block bootstrap. "
        "TTFT is measured only with --stream."
    )


def _s(seconds: float) -> str:
    return f"{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f}"


def _times(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in cells]


def _html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>\n" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _html_figure(name: str, svg: bytes) -> str:
    caption = escape(CAPTIONS[name])
    source = f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
    return (
        f'<figure id="{name}"><img src="{source}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _items(texts: Sequence[str], kind: str) -> str:
    if not texts:
        return ""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
