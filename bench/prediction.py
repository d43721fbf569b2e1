"""Measure the length predictor and write the table: quality, latency, stall, memory, soak.

    export OPENBLAS_NUM_THREADS=1               # as in the gateway
    python -m bench.prediction --alpaca FOLDER --hexgen FOLDER --out docs/benchmarks/prediction.md
    python -m bench.prediction                          # the small made-up set, a minute

`FOLDER/lengths.json` of alpaca: {"prompts": [...], "output_tokens": {model: [...]}}, counted from
tatsu-lab/alpaca_eval (CC BY-NC 4.0, so not in this repository). `FOLDER/input_file_*.json` of
hexgen: the traces of Relaxed-System-Lab/Hexgen-Flow.
"""

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import uvloop

from bench import prediction_cost as cost
from bench import prediction_quality as quality
from bench.prediction_quality import Score, mean_of

MADE_UP = Path(__file__).parent / "prediction_data"
STUDIED = (
    "gpt4_1106_preview",
    "Meta-Llama-3-70B-Instruct",
    "Meta-Llama-3.1-8B-Instruct-Turbo",
    "Qwen2-72B-Instruct",
    "Mixtral-8x7B-Instruct-v0.1",
)
"""The models of the first study (in `prediction.md`'s sense) that the data set here has."""
TWINS = (
    ("Meta-Llama-3-70B-Instruct", "Meta-Llama-3-8B-Instruct"),
    ("Meta-Llama-3-8B-Instruct", "Meta-Llama-3-70B-Instruct"),
    ("Mixtral-8x7B-Instruct-v0.1", "Mistral-7B-Instruct-v0.2"),
)
SIZES = (32, 128, 512, 2048, 10_000)


def main() -> None:
    """Run what is asked for, print it, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alpaca", type=Path, default=MADE_UP, help="folder with lengths.json")
    parser.add_argument("--hexgen", type=Path, help="folder with input_file_*.json")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", default="quality,latency,stall,memory,soak")
    parser.add_argument("--soak", type=int, default=200_000, help="observed requests")
    parser.add_argument("--samples", type=int, default=10_000, help="for each model, for memory")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wanted = options.only.split(",")
    parts = [heading(sys.argv[1:])]

    def done(text: str) -> None:
        print(text, flush=True)
        parts.append(text)

    if "quality" in wanted:
        name = "prompts.json" if options.alpaca == MADE_UP else "lengths.json"
        data = quality.Prompts.load(options.alpaca / name)
        done(asyncio.run(prompts_table(data, options.splits)))
        if options.hexgen:
            done(asyncio.run(stages_table(options.hexgen)))
    if "latency" in wanted:
        done(uvloop.run(latency_table()))
    if "stall" in wanted:
        done(uvloop.run(stall_table()))
    if "memory" in wanted:
        done(memory_table(cost.memory(8, options.samples)))
    if "soak" in wanted:
        done(soak_table(cost.soak(options.soak)))
    if options.out:
        options.out.write_text("\n".join(parts), "utf-8")


def heading(arguments: Sequence[str]) -> str:
    """Return where and with what it was measured."""
    packages = ("numpy", "onnxruntime", "hnswlib", "tokenizers")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    shown = " ".join(Path(a).name if "/" in a else a for a in arguments)
    return f"""# Length prediction, measured

`python -m bench.prediction {shown}`: CPython {platform.python_version()}, {versions};
{os.cpu_count()} virtual CPUs that other work shared (load average {os.getloadavg()[0]:.1f} at the
start). Read `min` as a quiet core and `CPU` as the work done; `p50` has the others' noise in it.
Seeds: splits 1000 + number, everything else fixed in the script.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def scored(name: str, target: str, found: Score) -> list[str]:
    """Return a row of the quality table."""
    return [
        name,
        f"{found.skill:.3f}",
        target,
        f"{found.rho:.3f}",
        f"{found.rho_median:.3f}",
        f"{found.cover80:.2f}",
        f"{found.crps:.1f}",
    ]


QUALITY = ("calls", "CRPS skill", "target", "rho", "rho of median", "80 % covers", "CRPS, tokens")


async def prompts_table(data: quality.Prompts, splits: int) -> str:
    """Return the table of single prompts."""
    studies: tuple[tuple[str, str, quality.Study], ...] = (
        ("unseen prompts", ">= 0.17", quality.unseen),
        ("inside a 35,000-character template", ">= 0.10", quality.templated),
        ("40 % of the history cut by max_tokens", ">= 0.13", quality.capped),
    )
    rows = []
    for name, target, study in studies:
        found = {
            model: [await study(data, model, number) for number in range(splits)]
            for model in data.tokens
        }
        means = {model: mean_of(scores) for model, scores in found.items()}
        rows.append(scored(f"{name}, {len(means)} models", target, mean_of([*means.values()])))
        studied = [means[model] for model in STUDIED if model in means]
        if studied:
            rows.append(scored(f"… the {len(studied)} of the first study", "", mean_of(studied)))
        if study is quality.unseen:
            rows += [scored(f"… {model}", "", each) for model, each in means.items()]
    for is_taught, name in (
        (False, "seen once before (a twin's answer, scaled)"),
        (True, "the same, once other prompts have come again"),
    ):
        twins = {
            f"… {model} after {twin}": mean_of(
                [
                    await quality.repeated(data, model, twin, number, is_taught=is_taught)
                    for number in range(splits)
                ]
            )
            for model, twin in TWINS
            if model in data.tokens
        }
        if twins:
            rows.append(scored(name, ">= 0.48", mean_of([*twins.values()])))
            rows += [scored(name, "", each) for name, each in twins.items()]
    what = f"{len(data.texts)} prompts, {splits} splits of 70/30 a model"
    return f"## Quality: single prompts\n\n{what}.\n\n{table(QUALITY, rows)}"


async def stages_table(folder: Path) -> str:
    """Return the table of agent calls."""
    flows = quality.load_flows(folder)
    both = list(dict.fromkeys(flow for each in flows.values() for flow in each))
    found = []
    for number in range(12):
        order = np.random.default_rng(3000 + number).permutation(len(both))
        cut = int(0.7 * len(both))
        past, new = ([both[i] for i in part] for part in (order[:cut], order[cut:]))
        found.append(await quality.stages(past, new))
    other = await quality.stages(flows["financial"], flows["formula1"])
    rows = [
        scored("stage + input length, 12 random splits", ">= 0.74", mean_of(found)),
        scored("learned on one database, tested on another", "", other),
    ]
    what = (
        f"{len(both)} distinct workflows of the HexGen-Flow traces (replays dropped), levels 0-3: "
        "the traces hold no texts."
    )
    return f"## Quality: agent stages\n\n{what}\n\n{table(QUALITY, rows)}"


async def latency_table() -> str:
    """Return the table of latencies."""
    head = (
        "prompt",
        "min",
        "p50",
        "CPU p50",
        "busy: min",
        "p50",
        "CPU p50",
    )
    predictor = await cost.filled(cost.HISTORY)
    cases = [(size, False) for size in SIZES] + [(10_000, True)]

    async def measured() -> list[cost.Latency]:
        return [await cost.latency(predictor, s, template=t, count=400) for s, t in cases]

    try:
        quiet = await measured()
        with cost.busy_core():
            busy = await measured()
    finally:
        predictor.close()
    rows = [
        [
            f"{a.tokens} tokens, {a.kind}",
            *(f"{ms:.2f}" for ms in (a.min_ms, a.p50_ms, a.cpu_ms)),
            *(f"{ms:.2f}" for ms in (b.min_ms, b.p50_ms, b.cpu_ms)),
        ]
        for a, b in zip(quiet, busy, strict=True)
    ]
    return (
        "## Latency, ms\n\n`predict` from call to distribution with 10,000 samples of history, "
        "both generations full, each call in a turn of the loop of its own; targets: p50 0.5 "
        f"quiet, 0.9 with the other core busy.\n\n{table(head, rows)}"
    )


async def stall_table() -> str:
    """Return the table of loop stalls."""
    predictor = await cost.filled(cost.HISTORY)
    cost.impatient(predictor)
    try:
        rows = []
        for name, per_s in (("nothing", 0.0), ("50 calls/s", 50.0), ("200 calls/s", 200.0)):
            found = await cost.stall(predictor, per_s, 15.0)
            times = (found.p50_ms, found.p99_ms, found.p999_ms, found.worst_ms)
            rest = (f"{100 * found.late_share:.1f} %", f"{found.job_p999_ms:.2f}")
            rows.append([name, *(f"{ms:.2f}" for ms in times), *rest])
    finally:
        predictor.close()
    head = (
        "the predictor does",
        "p50",
        "p99",
        "p99.9",
        "worst",
        "forecasts past 2 ms",
        "a job's CPU, p99.9",
    )
    return (
        "## How late a 1 ms timer of the event loop fires, ms\n\nPredicting and learning, prompts "
        "of 32 to 2,000 tokens; target: 2 ms at p99.9. `nothing` is what the machine's other "
        "work does to the timer; a job's CPU is the predictor's own part.\n\n"
        f"{table(head, rows)}"
    )


def memory_table(found: cost.Memory) -> str:
    """Return the table of memory."""
    rows = [
        ["libraries (numpy, onnxruntime, hnswlib, tokenizers)", f"{found.imports:.0f}"],
        ["started: model, tokenizer, session", f"+ {found.start:.0f}"],
        [f"8 models full, {found.samples:,} samples searchable", f"+ {found.full:.0f}"],
        ["what `memory_bytes` counts then", f"{found.counted:.0f}"],
    ]
    return f"## Memory, MB resident\n\nTarget: 64 MB.\n\n{table(('what', 'MB'), rows)}"


def soak_table(found: cost.Soak) -> str:
    """Return the table of the soak."""
    rows = [
        [f"after {found.requests // 10:,} observed requests", f"{found.early_mb:.1f}"],
        [f"after {found.requests:,}", f"{found.end_mb:.1f}"],
        ["the journal's two files then", f"{found.journal_mb:.1f}"],
    ]
    return (
        "## Soak of the data structures, MB\n\nLevels, histories and journal, ten models and 5,000 "
        f"stages in turn, {found.minutes:.1f} minutes.\n\n{table(('resident', 'MB'), rows)}"
    )


if __name__ == "__main__":
    main()
