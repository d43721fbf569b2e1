"""Plots of a report, as matplotlib figures and as PNG or SVG bytes.

Colours are Okabe and Ito's, told apart also by marker and line style; the background is white.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from loadgen.report import Cell, Timeline
from loadgen.statistics import Latency

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
WIDTH = 11
"""Inches; all figures are equally wide, so that their letters are equally large on a page."""
MAX_RATE_PANELS = 4
RATE_LABEL = "offered rate [workflows/s]"


def draw(
    cells: Sequence[Cell], timelines: Sequence[Timeline], slo_scale: float
) -> dict[str, Figure]:
    """Return the figures of a report by file name (without its ending)."""
    with _styled():
        figures = {
            "latency": latency(cells),
            "attainment": attainment(cells, slo_scale),
            "goodput": goodput(cells, slo_scale),
            "stages": stages(cells),
        }
        if timelines:
            figures["slowest"] = gantt(timelines)
    return figures


def to_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as `png` or `svg`; the same figure gives the same bytes."""
    buffer = BytesIO()
    with _styled():
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()


def latency(cells: Sequence[Cell]) -> Figure:
    """P50, P95 and P99 of workflow latency over the rate, a line a policy."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    read: tuple[tuple[str, Callable[[Latency], float]], ...] = (
        ("P50", lambda one: one.p50_s),
        ("P95", lambda one: one.p95_s),
        ("P99", lambda one: one.p99_s),
    )
    for ax, (title, figure_of) in zip(axes, read, strict=True):
        for policy, own, style in _lines(cells):
            points = [(cell.rate_per_s, figure_of(cell.workflow)) for cell in own if cell.workflow]
            ax.plot(*_columns(points), label=policy, **style)
        ax.set(title=title, xlabel=RATE_LABEL)
        _rates(ax, cells)
    _log_if_wide(axes[0], [cell.workflow for cell in cells if cell.workflow])
    axes[0].set_ylabel("workflow latency [s]")
    _legend(figure, axes[0])
    return figure


def attainment(cells: Sequence[Cell], slo_scale: float) -> Figure:
    """Share of workflows within scale x T0, a panel a rate, a line a policy."""
    rates = sorted({cell.rate_per_s for cell in cells})[-MAX_RATE_PANELS:]
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for ax, rate in zip(axes, rates, strict=True):
        for policy, own, style in _lines(cells):
            for cell in own:
                if cell.rate_per_s == rate:
                    ax.plot(
                        list(cell.attainment), list(cell.attainment.values()), label=policy, **style
                    )
        ax.axvline(slo_scale, color="#666666", linewidth=1, linestyle=":")
        ax.set(title=f"{rate:.3g} workflows/s", xlabel="deadline [multiples of T0]")
        ax.set_ylim(-0.03, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes[0].set_ylabel("workflows on time")
    _legend(figure, axes[0])
    return figure


def goodput(cells: Sequence[Cell], slo_scale: float) -> Figure:
    """Workflows on time a second, and completed a second, over the offered rate."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    read: tuple[tuple[str, Callable[[Cell], float]], ...] = (
        (f"on time (deadline {slo_scale:g} x T0)", lambda cell: cell.goodput_per_s),
        ("completed", lambda cell: cell.throughput_per_s),
    )
    top = max(max(cell.rate_per_s, cell.throughput_per_s) for cell in cells)
    for ax, (title, figure_of) in zip(axes, read, strict=True):
        for policy, own, style in _lines(cells):
            points = [(cell.rate_per_s, figure_of(cell)) for cell in own]
            ax.plot(*_columns(points), label=policy, **style)
        rates = sorted({cell.rate_per_s for cell in cells})
        ax.plot(rates, rates, color="#666666", linestyle=":", linewidth=1, label="offered")
        ax.set(title=title, xlabel=RATE_LABEL)
        ax.set_ylim(0, top * 1.08)
        _rates(ax, cells)
    axes[0].set_ylabel("workflows/s")
    _legend(figure, axes[0])
    return figure


def stages(cells: Sequence[Cell]) -> Figure:
    """Mean time to last token by stage at the highest rate, a bar a policy."""
    highest = max(cell.rate_per_s for cell in cells)
    shown = [cell for cell in cells if cell.rate_per_s == highest]
    names = [stage.stage for stage in shown[0].stages]
    figure = Figure(figsize=(WIDTH, 1.2 + 0.5 * max(len(names), 2)), layout="constrained")
    ax = figure.subplots()
    height = 0.8 / len(shown)
    for number, cell in enumerate(shown):
        means = {stage.stage: stage.latency.mean_s for stage in cell.stages}
        rows = [row + number * height for row in range(len(names))]
        ax.barh(
            rows,
            [means.get(name, 0.0) for name in names],
            height * 0.92,
            label=cell.policy,
            color=COLOURS[number % len(COLOURS)],
        )
    ax.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(
        title=f"Calls by stage at {highest:.3g} workflows/s", xlabel="mean time to last token [s]"
    )
    ax.legend(loc="lower right", frameon=False)
    return figure


def gantt(timelines: Sequence[Timeline]) -> Figure:
    """One workflow under each policy: when each call was sent and when it was back."""
    names = list(dict.fromkeys(call.stage for call in timelines[0].calls))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    rows = [len(timeline.calls) for timeline in timelines]
    figure = Figure(
        figsize=(WIDTH, 1.4 + 0.085 * sum(rows) + 0.4 * len(rows)), layout="constrained"
    )
    axes = figure.subplots(
        len(timelines), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": rows}
    )[:, 0]
    for ax, timeline in zip(axes, timelines, strict=True):
        start = timeline.workflow.arrival_s
        calls = sorted(timeline.calls, key=lambda call: (call.step, call.id))
        for row, call in enumerate(calls):
            ax.barh(
                row,
                call.ended_at_s - call.sent_at_s,
                left=call.sent_at_s - start,
                height=0.8,
                color=colours.get(call.stage, "#999999"),
            )
        ax.axvline(timeline.workflow.deadline_s, color="#CC0000", linewidth=1.2, linestyle="--")
        ax.set_title(f"{timeline.policy}: {timeline.workflow.latency_s:.0f} s", loc="left")
        ax.set_yticks([])
        ax.set_ylim(len(calls) - 0.3, -0.7)
    axes[-1].set_xlabel("seconds since the workflow arrived (red line: its deadline)")
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _styled() -> AbstractContextManager[None]:
    return mpl.rc_context(
        {
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "axes.axisbelow": True,
            "figure.facecolor": "white",
            "svg.hashsalt": "loadgen",
        }
    )


def _lines(cells: Sequence[Cell]) -> Iterator[tuple[str, list[Cell], Mapping[str, object]]]:
    """Yield each policy with its cells by rate and the looks of its line."""
    for number, policy in enumerate(dict.fromkeys(cell.policy for cell in cells)):
        own = sorted(
            (cell for cell in cells if cell.policy == policy), key=lambda cell: cell.rate_per_s
        )
        yield (
            policy,
            own,
            {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
                "linestyle": LINES[number % len(LINES)],
                "linewidth": 2,
                "markersize": 6,
            },
        )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _rates(ax: Axes, cells: Sequence[Cell]) -> None:
    rates = sorted({cell.rate_per_s for cell in cells})
    ax.set_xlim(0, rates[-1] * 1.08)
    if len(rates) <= 6:
        ax.set_xticks(rates, [f"{rate:.3g}" for rate in rates])


def _log_if_wide(ax: Axes, summaries: Sequence[Latency]) -> None:
    low = min((one.p50_s for one in summaries), default=0.0)
    high = max((one.p99_s for one in summaries), default=0.0)
    if low > 0 and high / low > 8:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False
    )
