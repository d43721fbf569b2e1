"""P95 latency over load, a line a policy, a panel a variant, as PNG."""

from collections.abc import Sequence
from io import BytesIO
from math import isfinite

from matplotlib.figure import Figure

from gateway.cli.comparison import Row

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Okabe and Ito's, told apart by the colour-blind too."""
MARKERS = "osD^vPX*"


def png(rows: Sequence[Row]) -> bytes:
    """Draw the rows."""
    variants = list(dict.fromkeys(row.variant for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    figure = Figure(figsize=(1.5 + 5 * len(variants), 4.5), layout="constrained")
    panels = figure.subplots(1, len(variants), sharey=True, squeeze=False)[0]
    for axes, variant in zip(panels, variants, strict=True):
        for number, policy in enumerate(policies):
            own = [row for row in rows if (row.variant, row.policy) == (variant, policy)]
            drawn = [row for row in own if isfinite(row.p95_s)]
            axes.plot(
                [row.load for row in drawn],
                [row.p95_s for row in drawn],
                label=policy,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
            )
        axes.set_title(variant)
        axes.set_xlabel("load (arrival rate / capacity)")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("P95 workflow latency [s], simulated")
    panels[0].legend()
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
