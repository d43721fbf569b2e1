"""One measurement from options to files: plans, runs, and the report in a folder."""

import asyncio
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from rich.console import Console

import gateway
from gateway.core.profiles import built_in
from gateway.sim import trace
from gateway.sim.trace import TraceWorkflow
from loadgen import figures, plan, records, render, results, unloaded
from loadgen.plan import Plan
from loadgen.progress import watching
from loadgen.records import Run
from loadgen.report import cells_of, slowest
from loadgen.results import Result
from loadgen.runner import Target
from loadgen.sweep import Job, Policy, interleaved, model_at, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is to be measured; the command line's flags have the same names."""

    title: str
    url: str
    model: str | None
    api_key: str | None
    admin_key: str | None
    policies: tuple[Policy, ...]
    label: str
    workload: str
    traces: tuple[Path, ...]
    """Recorded workflows; they take the place of the built-in workload."""
    qps: tuple[float, ...]
    """Empty: replay at the recorded instants."""
    workflows: int | None
    """A run; None: every recorded workflow once."""
    cv: float
    seed: int
    repeats: int
    gpus: tuple[str, ...]
    """The fleet whose idle speed defines T0."""
    slo_scale: float
    warmup: float
    speed: float
    is_streaming: bool
    is_real: bool
    timeout_s: float
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that is decided before the first call."""

    plans: tuple[Plan, ...]
    base_s: float


def prepare(options: Options) -> Prepared:
    """Read traces and decide every plan; TraceError says what is wrong."""
    recorded = [workflow for path in options.traces for workflow in trace.load(path)]
    if options.traces and not recorded:
        raise trace.TraceError(f"{options.traces[0]}: no workflow in it")
    fleet = [built_in(name) for name in options.gpus]
    seeds = range(options.seed, options.seed + options.repeats)
    drawn = {seed: _workflows(options, recorded, seed) for seed in seeds}
    everything = [workflow for workflows in drawn.values() for workflow in workflows]
    base_s = unloaded.mean_s(everything, fleet)
    rates: tuple[float | None, ...] = options.qps or (None,)
    return Prepared(
        plans=tuple(
            plan.build(
                drawn[seed],
                plan.arrival_instants(drawn[seed], qps=qps, seed=seed, cv=options.cv),
                seed=seed,
                qps=qps,
                deadline_s=options.slo_scale * base_s,
            )
            for seed in seeds
            for qps in rates
        ),
        base_s=base_s,
    )


def measure(options: Options, console: Console) -> Result:
    """Run everything and write the report; what was measured is kept on Ctrl-C too."""
    prepared = prepare(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise results.ResultError(f"--out {options.out}: {error.strerror}") from error
    jobs = interleaved(prepared.plans, options.policies, options.label)
    runs: list[Run] = []
    model = asyncio.run(model_at(options.url, _bearer(options.api_key), options.model))
    try:
        _fire(options, model, jobs, runs, console)
    finally:
        result = _result(options, model, prepared, runs)
        if result.cells:
            _write(result, runs, options)
    return result


def _fire(
    options: Options, model: str, jobs: Sequence[Job], runs: list[Run], console: Console
) -> None:
    target = Target(
        url=options.url,
        model=model,
        headers=_bearer(options.api_key),
        speed=options.speed,
        is_streaming=options.is_streaming,
        sets_lengths=not options.is_real,
        timeout_s=options.timeout_s,
    )
    with watching(console, len(jobs)) as watcher:
        asyncio.run(
            sweep(
                jobs,
                target,
                _bearer(options.admin_key),
                runs,
                on_start=watcher.start,
                on_workflow=watcher.workflow,
            )
        )


def _result(options: Options, model: str, prepared: Prepared, runs: Sequence[Run]) -> Result:
    return Result.of(
        cells_of(
            [run for run in runs if run.workflows], base_s=prepared.base_s, cut=options.warmup
        ),
        settings=_settings(options, model),
        base_s=prepared.base_s,
        slo_scale=options.slo_scale,
    )


def _write(result: Result, runs: Sequence[Run], options: Options) -> None:
    drawn = figures.draw(result.cells, slowest(runs, options.warmup), result.slo_scale)
    svgs = {name: figures.to_bytes(figure, "svg") for name, figure in drawn.items()}
    for name, figure in drawn.items():
        (options.out / f"{name}.png").write_bytes(figures.to_bytes(figure, "png"))
    (options.out / "result.json").write_bytes(results.to_json(result))
    (options.out / "report.md").write_text(render.to_markdown(result), encoding="utf-8")
    (options.out / "report.html").write_text(render.to_html(result, svgs), encoding="utf-8")
    with (options.out / "calls.jsonl").open("wb") as lines:
        for run in runs:
            lines.writelines(records.to_lines(run))


def _workflows(
    options: Options, recorded: Sequence[TraceWorkflow], seed: int
) -> Sequence[TraceWorkflow]:
    if not recorded:
        return plan.drawn(options.workload, options.workflows or 1, seed)
    if options.workflows is None:
        return recorded
    return plan.resampled(recorded, options.workflows, seed)


def _settings(options: Options, model: str) -> dict[str, object]:
    workload = [str(path) for path in options.traces] or options.workload
    return {
        "title": options.title,
        "measured at": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": options.url,
        "model": model,
        "policies": [policy.label for policy in options.policies] or options.label,
        "workload": workload,
        "workflows a run": options.workflows or "as recorded",
        "rates [workflows/s]": list(options.qps) or "as recorded",
        "arrivals": "Poisson" if options.cv == 1 else f"gamma gaps, cv {options.cv:g}",
        "seeds": list(range(options.seed, options.seed + options.repeats)),
        "T0 measured against": list(options.gpus),
        "deadline [x T0]": options.slo_scale,
        "cut from each end of a run": f"{options.warmup:.0%}",
        "speed": f"engines run {options.speed:g}x faster than real; all times scaled back",
        "streaming": "yes" if options.is_streaming else "no",
        "answer lengths": "the engines' own" if options.is_real else "as planned (vllm_xargs)",
        "call timeout [s]": options.timeout_s,
        "versions": (
            f"hexsage {gateway.__version__}, aiohttp {aiohttp.__version__}, "
            f"Python {platform.python_version()}"
        ),
        "machine": (
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
            f"load average {os.getloadavg()[0]:.1f} at the end"
        ),
    }


def _bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
