"""The picture of a comparison."""

from gateway.cli.comparison import Row
from gateway.cli.figure import png


def a_row(variant: str, load: float, p95_s: float) -> Row:
    return Row(
        variant=variant,
        load=load,
        policy="hexsage",
        mean_s=1.0,
        p50_s=1.0,
        p95_s=p95_s,
        p99_s=2.0,
        on_time=1.0,
        completed_per_s=1.0,
        mean_ttlt_s=1.0,
        p95_lower_by=None,
        what_if_p95=None,
    )


def test_it_is_drawn_even_where_everything_failed() -> None:
    rows = [a_row("as given", 0.5, 2.0), a_row("as given", 0.8, float("inf")), a_row("b", 0.5, 1.0)]

    assert png(rows).startswith(b"\x89PNG")
