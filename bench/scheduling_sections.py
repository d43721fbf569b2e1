"""The sections of the scheduling table, each a function of a Bench."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from bench.scheduling_rig import FLEETS, JSQ, POLICIES, RR, WJSQ, Bench, p95, ratio
from gateway.core.profiles import GpuProfile
from gateway.sim.experiment import (
    DEADLINE_SCALE,
    Cell,
    Forecast,
    Workload,
    capacity_per_s,
    fleet,
    measure_all,
    measure_mixed,
)
from gateway.sim.scorecard import Scorecard
from gateway.sim.simulator import Fault, FaultKind


def section_grid(bench: Bench) -> None:
    """P95 against JSQ, on hetero-1 over the loads."""
    loads = (0.4, 0.6, 0.8, 0.95, 1.1)
    results = {load: bench.grid(FLEETS["hetero-1"], load, POLICIES) for load in loads}
    bench.say("## P95 workflow latency, ratio `least_backlog+fcfs` (JSQ) / policy, hetero-1")
    bench.say()
    bench.say("Above 1 is better than JSQ; 95 % bootstrap intervals over (trace, seed) pairs.")
    bench.say()
    header = " | ".join(f"load {load}" for load in loads)
    bench.say(f"| policy | {header} |")
    bench.say("|---|" + "---|" * len(loads))
    for policy in POLICIES:
        cells = [ratio(p95(results[x][JSQ]), p95(results[x][policy])) for x in loads]
        bench.say(f"| {policy} | " + " | ".join(cells) + " |")
    bench.say()
    bench.say("## The default against each rival: rival's P95 / `hexsage`'s P95, hetero-1")
    bench.say()
    bench.say(f"| rival | {header} |")
    bench.say("|---|" + "---|" * len(loads))
    for rival in POLICIES[:-1]:
        cells = [ratio(p95(results[x][rival]), p95(results[x]["hexsage"])) for x in loads]
        bench.say(f"| {rival} | " + " | ".join(cells) + " |")
    bench.say()
    _other_figures(bench, loads, results)


def _other_figures(
    bench: Bench, loads: Sequence[float], results: dict[float, dict[str, list[Scorecard]]]
) -> None:
    bench.say("## Other figures on hetero-1 (means over pairs)")
    bench.say()
    bench.say(
        "| policy | load | mean s | P95 s | P99 s | within 3xT0 | completed/s vs RR "
        "| mean TTLT s | preemptions a call |"
    )
    bench.say("|---|---|---|---|---|---|---|---|---|")
    for policy in POLICIES:
        for load in loads:
            scores = results[load][policy]
            base = results[load][RR]
            count = len(scores)
            attained = _attained(bench, scores)
            speedup = sum(
                s.completed_per_s / r.completed_per_s for s, r in zip(scores, base, strict=True)
            )
            bench.say(
                f"| {policy} | {load} | {sum(s.mean_s for s in scores) / count:.1f} "
                f"| {sum(p95(scores)) / count:.1f} "
                f"| {sum(s.percentile_s(0.99) for s in scores) / count:.1f} "
                f"| {attained:.3f} | {speedup / count:.2f} "
                f"| {sum(s.mean_ttlt_s for s in scores) / count:.2f} "
                f"| {sum(s.preemptions_per_call for s in scores) / count:.4f} |"
            )
    bench.say()


def _attained(bench: Bench, scores: Sequence[Scorecard]) -> float:
    backends = fleet(FLEETS["hetero-1"])
    deadlines = [
        DEADLINE_SCALE * workload.unloaded_s(backends)
        for workload in bench.workloads
        for _ in range(bench.seeds)
    ]
    pairs = zip(scores, deadlines, strict=True)
    return sum(score.attainment(deadline_s) for score, deadline_s in pairs) / len(scores)


def section_goodput(bench: Bench) -> None:
    """The highest load with 95 % of workflows within 3 x T0."""
    loads = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    policies = (RR, JSQ, WJSQ, "hexgen", "hexsage")
    results = {load: bench.grid(FLEETS["hetero-1"], load, policies) for load in loads}
    backends = fleet(FLEETS["hetero-1"])
    bench.say("## Goodput: highest load with at least 95 % within 3xT0, hetero-1")
    bench.say()
    bench.say("Interpolated between the loads of the grid, mean over (trace, seed) pairs.")
    bench.say()
    bench.say("| policy | load | vs RR | vs JSQ |")
    bench.say("|---|---|---|---|")
    reached: dict[str, list[float]] = {}
    for policy in policies:
        reached[policy] = []
        for pair in range(len(bench.workloads) * bench.seeds):
            workload = bench.workloads[pair // bench.seeds]
            deadline_s = DEADLINE_SCALE * workload.unloaded_s(backends)
            curve = [results[load][policy][pair].attainment(deadline_s) for load in loads]
            reached[policy].append(_crossing(loads, curve, 0.95))
    for policy in policies:
        mean = sum(reached[policy]) / len(reached[policy])
        bench.say(
            f"| {policy} | {mean:.2f} | {ratio(reached[policy], reached[RR])} "
            f"| {ratio(reached[policy], reached[JSQ])} |"
        )
    bench.say()


def _crossing(loads: Sequence[float], curve: Sequence[float], level: float) -> float:
    """Return the load at which a falling curve first crosses the level."""
    if curve[0] < level:
        return loads[0] * curve[0] / level
    for (low, high), (at_low, at_high) in zip(pairwise(loads), pairwise(curve), strict=True):
        if at_high < level:
            return low + (high - low) * (at_low - level) / (at_low - at_high)
    return loads[-1]


def section_fleets(bench: Bench) -> None:
    """Other fleets and burstier arrivals, P95 against JSQ."""
    policies = (RR, JSQ, WJSQ, "hexgen", "edf", "hexsage")
    rows: list[tuple[str, Sequence[str], float, float]] = []
    for name in ("hetero-2", "4xA100", "wide"):
        rows += [(name, FLEETS[name], 1.0, load) for load in (0.5, 0.75, 0.95)]
    rows += [("hetero-1", FLEETS["hetero-1"], cv, load) for cv in (2, 4) for load in (0.5, 0.75)]
    bench.say("## Other fleets, bursts: P95 ratio JSQ / policy")
    bench.say()
    bench.say("| fleet | gaps' cv | load | " + " | ".join(policies) + " |")
    bench.say("|---|---|---|" + "---|" * len(policies))
    for name, gpus, cv, load in rows:
        result = bench.grid(gpus, load, policies, _bursty(cv))
        cells = [ratio(p95(result[JSQ]), p95(result[policy])) for policy in policies]
        bench.say(f"| {name} | {cv} | {load} | " + " | ".join(cells) + " |")
    bench.say()


def section_faults(bench: Bench) -> None:
    """Wrong beliefs and broken engines at load .75, P95 against JSQ under the same fault."""
    policies = (JSQ, WJSQ, "hexgen", "hexsage")

    def slower(cell: Cell) -> Cell:
        truth = [b.profile for b in cell.backends]
        truth[0] = _scaled(cell, 0, 2.0)
        return replace(cell, engines=tuple(truth))

    def faster(cell: Cell) -> Cell:
        truth = [b.profile for b in cell.backends]
        truth[2] = _scaled(cell, 2, 2.0)
        return replace(cell, engines=tuple(truth))

    def unlearning(change: Callable[[Cell], Cell]) -> Callable[[Cell], Cell]:
        return lambda cell: replace(change(cell), learns_profiles=False)

    def window(cell: Cell) -> tuple[float, float]:
        start = cell.count / cell.rate_per_s * 0.4
        return start, start + 600

    def crash(cell: Cell) -> Cell:
        start, stop = window(cell)
        backend_id = cell.backends[0].id
        return replace(
            cell,
            faults=(
                Fault(at=start, backend_id=backend_id, kind=FaultKind.FAIL),
                Fault(at=stop, backend_id=backend_id, kind=FaultKind.RECOVER),
            ),
        )

    def stall(cell: Cell) -> Cell:
        start, stop = window(cell)
        backend_id = cell.backends[0].id
        return replace(
            cell,
            faults=(
                Fault(at=start, backend_id=backend_id, kind=FaultKind.SLOW, factor=3.0),
                Fault(at=stop, backend_id=backend_id, kind=FaultKind.SLOW, factor=1.0),
            ),
        )

    rows: list[tuple[str, Callable[[Cell], Cell]]] = [
        ("none", lambda cell: cell),
        ("each stage's forecast off x2 or /2", lambda c: replace(c, forecast_factor=2.0)),
        ("one A100 twice as slow as believed", slower),
        ("the same, profiles not corrected", unlearning(slower)),
        ("the A6000 twice as slow as believed", faster),
        ("the same, profiles not corrected", unlearning(faster)),
        ("one A100 three times as slow for 600 s", stall),
        ("one A100 down for 600 s, its work retried", crash),
    ]
    bench.say("## Faults and wrong beliefs at load .75, hetero-1: P95 ratio JSQ / policy")
    bench.say()
    bench.say("| fault | " + " | ".join(policies) + " |")
    bench.say("|---|" + "---|" * len(policies))
    for name, change in rows:
        result = bench.grid(FLEETS["hetero-1"], 0.75, policies, change)
        cells = [ratio(p95(result[JSQ]), p95(result[policy])) for policy in policies]
        bench.say(f"| {name} | " + " | ".join(cells) + " |")
    bench.say()


def _scaled(cell: Cell, index: int, slowness: float) -> GpuProfile:
    profile = cell.backends[index].profile
    return replace(
        profile,
        prefill_s_per_token=profile.prefill_s_per_token * slowness,
        decode_base_s=profile.decode_base_s * slowness,
        kv_read_s_per_token=profile.kv_read_s_per_token * slowness,
    )


def _bursty(cv: float) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, cv=cv)


SINGLE_POLICIES = (
    JSQ,
    WJSQ,
    "srpt",
    "completion+srpt",
    "sagesched",
    "completion+gittins",
    "hexsage",
)


def section_singles(bench: Bench) -> None:
    """Independent calls with the lengths of a conversation trace."""
    calls, source = bench.single_calls()
    workload = Workload.split("conversation", calls)
    bench.say(f"## Independent calls ({source}): mean TTLT s (P95), and JSQ's mean / policy's")
    bench.say()
    bench.say(
        "Load 1.0 is the throughput under the KV budget alone. Forecasts are synthetic: "
        "calibrated, with the rank correlation that the predictor reaches on unseen prompts "
        "(0.55); SRPT has "
        "the same forecast's mean."
    )
    bench.say()
    bench.say("| fleet | load | " + " | ".join(SINGLE_POLICIES) + " |")
    bench.say("|---|---|" + "---|" * len(SINGLE_POLICIES))
    for name, gpus in (("1xA100", ("A100",)), ("hetero-1", FLEETS["hetero-1"])):
        backends = fleet(gpus)
        capacity = capacity_per_s(workload, backends, 3000, max_in_flight=None)
        for load in (0.7, 0.9, 1.0):
            cells = [
                Cell(
                    workload=workload,
                    backends=backends,
                    policy=policy,
                    rate_per_s=load * capacity,
                    seed=100 + seed,
                    count=4000,
                    forecast=Forecast.SIGNAL,
                )
                for policy in SINGLE_POLICIES
                for seed in range(bench.seeds)
            ]
            scores = measure_all(cells, bench.pool)
            by_policy = [scores[i : i + bench.seeds] for i in range(0, len(scores), bench.seeds)]
            texts = []
            base = [s.mean_ttlt_s for s in by_policy[0]]
            for own in by_policy:
                means = [s.mean_ttlt_s for s in own]
                tail = sum(s.ttlt_s_p95 for s in own) / len(own)
                gain = sum(b / m for b, m in zip(base, means, strict=True)) / len(means)
                texts.append(f"{sum(means) / len(means):.1f} ({tail:.0f}) {gain:.2f}x")
            bench.say(f"| {name} | {load} | " + " | ".join(texts) + " |")
    bench.say()


def section_mixed(bench: Bench) -> None:
    """Half the capacity to workflows, half to independent calls."""
    calls, source = bench.single_calls()
    singles = tuple(calls)
    gpus = FLEETS["hetero-1"]
    backends = fleet(gpus)
    lone = Workload.split("conversation", calls)
    capacity = capacity_per_s(lone, backends, 3000, max_in_flight=None)
    policies = (
        JSQ,
        "hexgen",
        "edf",
        "completion+edf",
        "sagesched",
        "completion+gittins",
        "hexsage",
    )
    bench.say(f"## Mixed traffic, hetero-1: half workflows, half independent calls ({source})")
    bench.say()
    bench.say(
        "| load | policy | workflows: P95 s | mean s | within 3xT0 | calls: mean TTLT s | P95 s |"
    )
    bench.say("|---|---|---|---|---|---|---|")
    for load in (0.7, 0.9):
        for policy in policies:
            cells = [
                replace(
                    bench.cell(workload, backends, load / 2, seed),
                    policy=policy,
                    count=150,
                    forecast=Forecast.SIGNAL,
                    singles=singles,
                    singles_per_s=capacity * load / 2,
                )
                for workload in bench.workloads
                for seed in range(bench.seeds)
            ]
            pairs = list(bench.pool.map(measure_mixed, cells))
            flows, lones = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            count = len(pairs)
            attained = sum(
                flow.attainment(cell.deadline_s or 0.0)
                for flow, cell in zip(flows, cells, strict=True)
            )
            bench.say(
                f"| {load} | {policy} | {sum(p95(flows)) / count:.1f} "
                f"| {sum(f.mean_s for f in flows) / count:.1f} | {attained / count:.3f} "
                f"| {sum(s.mean_ttlt_s for s in lones) / count:.2f} "
                f"| {sum(s.ttlt_s_p95 for s in lones) / count:.1f} |"
            )
    bench.say()


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "grid": section_grid,
    "goodput": section_goodput,
    "fleets": section_fleets,
    "faults": section_faults,
    "singles": section_singles,
    "mixed": section_mixed,
}
