"""result.json: written by a sweep, read by `compare` (pure but for the reading of a file).

Each cell carries the keys of a `vllm bench serve` result where they mean the same (latencies in
ms, of calls), and under `cell` everything this project's reports are made of. A result file of
`vllm bench serve` itself can be read for comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.pairing import Comparison, with_first
from loadgen.report import Cell, Paired, StageReport
from loadgen.statistics import Latency

FORMAT = "hexsage-loadgen/1"


class ResultError(ValueError):
    """A result file cannot be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one invocation of the load generator measured, and how."""

    settings: Mapping[str, Any]
    """Everything that was chosen, versions included."""
    base_s: float
    """T0: the mean unloaded critical path of the workload on the reference fleet."""
    slo_scale: float
    """The deadline given to workflows, in multiples of T0."""
    cells: Sequence[Cell]
    comparisons: Sequence[Comparison]
    """Every policy against the first."""

    @classmethod
    def of(
        cls,
        cells: Sequence[Cell],
        *,
        settings: Mapping[str, Any],
        base_s: float,
        slo_scale: float,
    ) -> "Result":
        """Return a result with the comparisons that follow from its cells."""
        return cls(
            settings=settings,
            base_s=base_s,
            slo_scale=slo_scale,
            cells=cells,
            comparisons=with_first(cells),
        )


def to_json(result: Result) -> bytes:
    """Return the file's content."""
    document = {
        "format": FORMAT,
        "settings": dict(result.settings),
        "base_s": result.base_s,
        "slo_scale": result.slo_scale,
        "comparisons": [asdict(one) for one in result.comparisons],
        "cells": [as_bench(cell) | {"cell": asdict(cell)} for cell in result.cells],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(document, option=options)


def as_bench(cell: Cell) -> dict[str, Any]:
    """Return a cell under the names `vllm bench serve` uses; latencies are of single calls."""
    flat: dict[str, Any] = {
        "label": cell.policy,
        "workflow_rate": cell.qps,
        "duration": cell.duration_s,
        "completed": cell.calls,
        "failed": sum(cell.failures.values()),
        "total_input_tokens": cell.prompt_tokens,
        "total_output_tokens": cell.output_tokens,
        "request_throughput": cell.calls_per_s,
        "output_throughput": cell.output_tokens_per_s,
        "total_token_throughput": cell.prompt_tokens_per_s + cell.output_tokens_per_s,
        "workflow_throughput": cell.throughput_per_s,
        "workflow_goodput": cell.goodput_per_s,
    }
    for name, latency in (
        ("ttft", cell.ttft),
        ("tpot", cell.tpot),
        ("e2el", cell.ttlt),
        ("workflow", cell.workflow),
    ):
        if latency is not None:
            flat |= {
                f"mean_{name}_ms": latency.mean_s * 1000,
                f"median_{name}_ms": latency.p50_s * 1000,
                f"p95_{name}_ms": latency.p95_s * 1000,
                f"p99_{name}_ms": latency.p99_s * 1000,
            }
    return flat


def read(path: Path) -> Result | dict[str, Any]:
    """Return a result of ours, or the flat mapping of a `vllm bench serve` file."""
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ResultError(f"{path}: not a result file: the top level must be an object")
    if "request_throughput" in document:
        return document
    if document.get("format") != FORMAT:
        raise ResultError(
            f"{path}: neither a result.json of loadgen ({FORMAT}) nor of `vllm bench serve`"
        )
    try:
        return Result.of(
            [_cell(entry["cell"]) for entry in document["cells"]],
            settings=document["settings"],
            base_s=float(document["base_s"]),
            slo_scale=float(document["slo_scale"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultError(f"{path}: damaged: {type(error).__name__} {error}") from error


def _cell(entry: dict[str, Any]) -> Cell:
    latencies = {
        name: Latency(**entry[name]) if entry[name] is not None else None
        for name in ("workflow", "ttlt", "ttft", "tpot", "lag")
    }
    return Cell(
        **entry
        | latencies
        | {
            "seeds": tuple(entry["seeds"]),
            "plans": tuple(entry["plans"]),
            "measured": tuple(Paired(**one) for one in entry["measured"]),
            "attainment": {float(scale): share for scale, share in entry["attainment"].items()},
            "stages": tuple(
                StageReport(**stage | {"latency": Latency(**stage["latency"])})
                for stage in entry["stages"]
            ),
        }
    )
