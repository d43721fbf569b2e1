"""Tests of loadgen.figures."""

import pytest

from loadgen import figures
from loadgen.records import Run
from loadgen.report import cells_of, slowest
from tests.loadgen.builders import a_run

RUNS = [
    a_run([1.0, 2.0, 30.0], policy=policy, qps=qps)
    for qps in (0.5, 1.0)
    for policy in ("base", "better")
]


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(RUNS, id="two policies at two rates"),
        pytest.param([a_run([1.0, 2.0], qps=None)], id="one replay"),
        pytest.param([a_run([1.0])], id="one workflow"),
        pytest.param([a_run([None, None])], id="everything failed"),
    ],
)
def test_every_figure_can_be_drawn(runs: list[Run]) -> None:
    drawn = figures.draw(cells_of(runs, base_s=1.0, cut=0.0), slowest(runs, 0.0), slo_scale=3.0)

    assert {"latency", "attainment", "goodput", "stages"} <= drawn.keys()
    for figure in drawn.values():
        assert figures.to_bytes(figure, "png").startswith(b"\x89PNG")


def test_the_same_figure_gives_the_same_bytes() -> None:
    cells = cells_of(RUNS, base_s=1.0, cut=0.0)

    assert figures.to_bytes(figures.latency(cells), "svg") == figures.to_bytes(
        figures.latency(cells), "svg"
    )
