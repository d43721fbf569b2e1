"""Comparison: what `hexsage simulate` plays, and its figures as rows (pure)."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import fmean

from gateway.cli.inputs import NamedPolicy, deadline_s_of
from gateway.core.profiles import GpuProfile
from gateway.core.types import Backend, BackendId
from gateway.sim.experiment import Cell, Workload
from gateway.sim.scorecard import Scorecard, bootstrap_ratio
from gateway.sim.simulator import Fault

AS_GIVEN = "as given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A fleet and what befalls it."""

    label: str
    backends: tuple[Backend, ...]
    engines: tuple[GpuProfile, ...] = ()
    """What the backends really are; empty: as believed."""
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A paired ratio over seeds with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy at one load in one variant; means over seeds."""

    variant: str
    load: float
    policy: str
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    on_time: float
    completed_per_s: float
    mean_ttlt_s: float
    p95_lower_by: Ratio | None
    """The first policy's P95 over this one's; None for the first policy, and after failures."""
    what_if_p95: Ratio | None
    """The P95 with what the variant changes over the P95 without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every run to make: policies, loads and seeds of every variant, on paired arrivals."""

    workload: Workload
    variants: tuple[Variant, ...]
    policies: tuple[NamedPolicy, ...]
    loads: tuple[float, ...]
    capacity_per_s: float
    """Of the fleet as given, so that a load is the same traffic in every variant."""
    seeds: int
    count: int
    cv: float
    learns_profiles: bool = True

    def cells(self) -> list[Cell]:
        """Return the runs: by variant, load, policy, seed."""
        deadline_s = deadline_s_of(self.workload, self.variants[0].backends)
        return [
            Cell(
                workload=self.workload,
                backends=variant.backends,
                engines=variant.engines,
                faults=variant.faults,
                policy=policy.name,
                settings=policy.settings,
                rate_per_s=load * self.capacity_per_s,
                seed=seed,
                count=self.count,
                cv=self.cv,
                deadline_s=deadline_s,
                learns_profiles=self.learns_profiles,
            )
            for variant in self.variants
            for load in self.loads
            for policy in self.policies
            for seed in range(self.seeds)
        ]

    def rows(self, cards: Sequence[Scorecard]) -> list[Row]:
        """Return the figures of the scorecards of `cells`, in their order."""
        groups = iter([cards[i : i + self.seeds] for i in range(0, len(cards), self.seeds)])
        found: dict[tuple[str, float, str], Sequence[Scorecard]] = {
            (variant.label, load, policy.label): next(groups)
            for variant in self.variants
            for load in self.loads
            for policy in self.policies
        }
        first_policy, first_variant = self.policies[0].label, self.variants[0].label
        rows = []
        for (variant, load, policy), own in found.items():
            first = found[variant, load, first_policy]
            without = found[first_variant, load, policy]
            rows.append(
                Row(
                    variant=variant,
                    load=load,
                    policy=policy,
                    mean_s=fmean(card.mean_s for card in own),
                    p50_s=fmean(card.percentile_s(0.5) for card in own),
                    p95_s=fmean(card.percentile_s(0.95) for card in own),
                    p99_s=fmean(card.percentile_s(0.99) for card in own),
                    on_time=fmean(card.on_time for card in own),
                    completed_per_s=fmean(card.completed_per_s for card in own),
                    mean_ttlt_s=fmean(card.mean_ttlt_s for card in own),
                    p95_lower_by=None if policy == first_policy else _p95_ratio(first, own),
                    what_if_p95=None if variant == first_variant else _p95_ratio(own, without),
                )
            )
        return rows


def slowed(profile: GpuProfile, slowness: float) -> GpuProfile:
    """Return the profile of an engine that takes `slowness` times as long for everything."""
    return replace(
        profile,
        prefill_s_per_token=profile.prefill_s_per_token * slowness,
        decode_base_s=profile.decode_base_s * slowness,
        kv_read_s_per_token=profile.kv_read_s_per_token * slowness,
        step_overhead_s=profile.step_overhead_s * slowness,
    )


def truths(
    backends: Sequence[Backend], slowness: Iterable[tuple[BackendId, float]]
) -> tuple[GpuProfile, ...]:
    """Return what the engines really are when some take longer than believed."""
    factors = dict(slowness)
    return tuple(slowed(backend.profile, factors.get(backend.id, 1.0)) for backend in backends)


def to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV; intervals have columns of their own."""
    flat = [_flat(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(row: Row) -> dict[str, object]:
    record: dict[str, object] = {}
    for name, value in asdict(row).items():
        if name in {"p95_lower_by", "what_if_p95"}:
            for part in ("mean", "low", "high"):
                record[f"{name}_{part}"] = "" if value is None else value[part]
        else:
            record[name] = value
    return record


def _p95_ratio(over: Sequence[Scorecard], under: Sequence[Scorecard]) -> Ratio | None:
    above = [card.percentile_s(0.95) for card in over]
    below = [card.percentile_s(0.95) for card in under]
    if not all(isfinite(seconds) for seconds in (*above, *below)):
        return None  # more than a twentieth of the workflows failed
    mean, low, high = bootstrap_ratio(above, below)
    return Ratio(mean=mean, low=low, high=high)
