"""Tables of bench/data_plane.py: medians over the rounds, and ratios inside each round."""

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from gateway import __version__
from gateway.compiled import form

Line = dict[str, float | str]
REFERENCES = ("sglang-router", "nginx", "litellm")
PLAIN = ("plain-1", "plain-16", "plain-64", "unseen-16")
STREAMED = ("burst-16", "paced-64")


def report(
    lines: Sequence[Line], extras: Mapping[str, Mapping[str, float]], arguments: Sequence[str]
) -> str:
    """Return everything as Markdown."""
    day = datetime.now(UTC).date().isoformat()
    command = " ".join(["python -m bench.data_plane", *arguments])
    parts = [
        f"`{command}`, {day}, HexSage {__version__} ({form()}), "
        f"Python {platform.python_version()}, {_processor()}; "
        f"medians of {_rounds(lines)} interleaved rounds.",
        "Plain answers (1 KB prompts, 1.2 KB answers):",
        _table(lines, _PLAIN_COLUMNS),
        "Streams:",
        _table(lines, _STREAM_COLUMNS),
        "CPU of `hexsage` as a ratio to others, median of the rounds' ratios:",
        _ratios(lines),
    ]
    for name, figures in extras.items():
        cells = [f"| {key} | {value:.4g} |" for key, value in figures.items()]
        parts.append("\n".join([f"| {name} | |", "|---|---|", *cells]))
    return "\n\n".join(parts) + "\n"


def _values(lines: Sequence[Line], target: str, case: str, figure: str) -> dict[int, float]:
    """Return a figure by round."""
    return {
        int(line["round"]): float(line[figure])
        for line in lines
        if line["target"] == target and line["case"] == case and figure in line
    }


def _median(figure: str, digits: int) -> Callable[[Sequence[Line], str, str], str]:
    def cell(lines: Sequence[Line], target: str, case: str) -> str:
        values = _values(lines, target, case, figure)
        return f"{median(values.values()):.{digits}f}" if values else "—"

    return cell


def _added(figure: str) -> Callable[[Sequence[Line], str, str], str]:
    """What a target adds to the backend's own latency."""

    def cell(lines: Sequence[Line], target: str, case: str) -> str:
        values, bare = (_values(lines, name, case, figure) for name in (target, "direct"))
        added = [value - bare[number] for number, value in values.items() if number in bare]
        return f"{median(added):.2f}" if added and target != "direct" else "—"

    return cell


_PLAIN_COLUMNS = (
    ("CPU ms: 1", "plain-1", _median("cpu_ms", 3)),
    ("16", "plain-16", _median("cpu_ms", 3)),
    ("64", "plain-64", _median("cpu_ms", 3)),
    ("16, unseen prompts", "unseen-16", _median("cpu_ms", 3)),
    ("requests/s at 16", "plain-16", _median("per_s", 0)),
    ("added p50 ms at 1", "plain-1", _added("latency_p50_ms")),
    ("added p99 ms at 1", "plain-1", _added("latency_p99_ms")),
    ("RSS MB", "plain-64", _median("rss_mb", 0)),
)
_STREAM_COLUMNS = (
    ("CPU µs a chunk: burst", "burst-16", _median("cpu_us_per_chunk", 1)),
    ("paced", "paced-64", _median("cpu_us_per_chunk", 1)),
    ("added TTFT p50 ms: burst", "burst-16", _added("first_p50_ms")),
    ("paced", "paced-64", _added("first_p50_ms")),
    ("added ms a chunk, paced: p50", "paced-64", _added("way_p50_ms")),
    ("p99", "paced-64", _added("way_p99_ms")),
)


def _table(
    lines: Sequence[Line],
    columns: Sequence[tuple[str, str, Callable[[Sequence[Line], str, str], str]]],
) -> str:
    rows = [
        "| | " + " | ".join(title for title, _, _ in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for target in _targets(lines):
        cells = [cell(lines, target, case) for _, case, cell in columns]
        if any(text != "—" for text in cells):
            rows.append(f"| {target} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _ratios(lines: Sequence[Line]) -> str:
    cases = [*PLAIN, *STREAMED]
    rows = ["| to | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for reference in REFERENCES:
        cells = [_ratio(lines, reference, case) for case in cases]
        if any(text != "—" for text in cells):
            rows.append(f"| {reference} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _ratio(lines: Sequence[Line], reference: str, case: str) -> str:
    figure = "cpu_us_per_chunk" if case in STREAMED else "cpu_ms"
    own, others = (_values(lines, name, case, figure) for name in ("hexsage", reference))
    ratios = [value / others[number] for number, value in own.items() if number in others]
    if not ratios:
        return "—"
    ratio = median(ratios)
    return f"{ratio:.2f}" if ratio >= 0.1 else f"1/{1 / ratio:.0f}"


def _targets(lines: Sequence[Line]) -> list[str]:
    return sorted({str(line["target"]) for line in lines}, key=lambda t: (t != "hexsage", t))


def _rounds(lines: Sequence[Line]) -> int:
    return len({line["round"] for line in lines})


def _processor() -> str:
    run = subprocess.run(["lscpu"], capture_output=True, text=True, check=False)
    models = [line.split(":", 1)[1] for line in run.stdout.splitlines() if "Model name" in line]
    return models[0].strip() if models else platform.machine()
