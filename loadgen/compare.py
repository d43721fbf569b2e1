"""Two result files -> the rows of a comparison (pure)."""

from typing import Any

from loadgen.pairing import compared
from loadgen.report import Cell
from loadgen.results import Result, as_bench
from loadgen.statistics import Ratio

HEADER = (
    "policy A / B",
    "rate /s",
    "P50 s A / B",
    "P95 s A / B",
    "on time A / B",
    "P50 A:B",
    "P95 A:B",
    "verdict on P95",
)


def cell_lines(first: Result, second: Result) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Compare cells of equal rate: of the same policy where there is one, else all with all."""
    common = {cell.policy for cell in first.cells} & {cell.policy for cell in second.cells}
    return HEADER, [
        _line(a, b)
        for a in first.cells
        for b in second.cells
        if a.qps == b.qps and (a.policy == b.policy or not common)
    ]


def shared_figures(
    first: Result | dict[str, Any], second: Result | dict[str, Any]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Set a file of `vllm bench serve` beside another file, by the numbers both have."""
    a, b = _columns(first), _columns(second)
    names = ("figure", *(f"A {name}" for name, _ in a), *(f"B {name}" for name, _ in b))
    shared = [
        key
        for key, value in a[0][1].items()
        if all(isinstance(flat.get(key), int | float) for _, flat in (*a, *b))
        if isinstance(value, int | float)
    ]
    return names, [(key, *(f"{flat[key]:.4g}" for _, flat in (*a, *b))) for key in shared]


def _columns(result: Result | dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(result, dict):
        return [(str(result.get("label") or result.get("backend") or "bench"), result)]
    return [(f"{cell.policy} {cell.rate_per_s:.3g}/s", as_bench(cell)) for cell in result.cells]


def _line(a: Cell, b: Cell) -> tuple[str, ...]:
    policies = a.policy if a.policy == b.policy else f"{a.policy} / {b.policy}"
    same_plans = a.plans == b.plans
    versus = compared(a, b) if same_plans else None
    p50 = versus.p50 if versus else None
    p95 = versus.p95 if versus else None
    return (
        policies,
        f"{a.rate_per_s:.3g}",
        " / ".join(f"{cell.workflow.p50_s:.1f}" if cell.workflow else "-" for cell in (a, b)),
        " / ".join(f"{cell.workflow.p95_s:.1f}" if cell.workflow else "-" for cell in (a, b)),
        f"{a.deadline_attainment:.0%} / {b.deadline_attainment:.0%}",
        _interval(p50),
        _interval(p95),
        _verdict(p95) if same_plans else "other plans: not comparable",
    )


def _interval(ratio: Ratio | None) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "-"


def _verdict(ratio: Ratio | None) -> str:
    if ratio is None:
        return "too few workflows"
    if not ratio.is_significant:
        return "no difference beyond noise"
    return "B is faster" if ratio.value > 1 else "B is slower"
