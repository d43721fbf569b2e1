"""Gauges: the gateway at one instant, for whoever asks for its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.telemetry.histogram import SHORT, Histogram


class BackendGauges(NamedTuple):
    """One backend at this instant."""

    name: str
    is_up: bool = True
    breaker: str = "closed"
    in_flight: int = 0
    queued: int = 0
    """Calls bound to it that wait for room; policies that bind late have none."""
    backlog_s: float = 0.0
    kv_reserved_tokens: int = 0
    kv_budget_tokens: float = 0.0
    prefill_factor: float = 1.0
    """How many times slower than configured it reads prompts, by what was seen."""
    decode_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorGauges:
    """The length predictor since the start, and what its forecasts are worth."""

    by_level: Mapping[str, int] = field(default_factory=dict)
    """Forecasts by the narrowest evidence they rest on."""
    missed: Mapping[str, int] = field(default_factory=dict)
    """Searches that were given up or never begun, by why: late, refused."""
    spared: Mapping[str, int] = field(default_factory=dict)
    """Searches that were not needed, by why: the prompt was repeated, its stage is narrow."""
    memory_bytes: int = 0
    answer_s_p50: float = 0.0
    answer_s_p99: float = 0.0
    samples: Mapping[str, int] = field(default_factory=dict)
    """By model: the history that is searched."""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By model: coverage of the central intervals, skill over the stage level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerGauges:
    """The policy in force and what the tuner did to it."""

    policy: str
    alpha: float | None = None
    """None: the policy has none."""
    searches: Mapping[str, int] = field(default_factory=dict)
    """Of late, by what came of it: applied, left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGauges:
    """One worker at this instant, where there are several; one that is not there has only zeros,
    but for its restarts."""

    number: int
    is_up: bool = False
    restarts: int = 0
    """Workers that stood in its place before it, since the gateway's start."""
    connections: int = 0
    in_flight: int = 0
    """Calls that came by it and have not ended, those that wait included."""
    memory_bytes: int = 0
    lag_s: Histogram = field(default_factory=lambda: Histogram(SHORT))
    """How late its event loop is, since its own start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Everything that is not counted event by event."""

    version: str = ""
    queued: int = 0
    in_flight: int = 0
    open_workflows: int = 0
    tasks: int = 0
    reloads_refused: int = 0
    tenants: Mapping[str, int] = field(default_factory=dict)
    """Calls held or queued, of tenants that have a key."""
    limited: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Calls that the limits of a key turned away, by tenant and code."""
    backends: tuple[BackendGauges, ...] = ()
    workers: tuple[WorkerGauges, ...] = ()
    predictor: PredictorGauges | None = None
    tuner: TunerGauges | None = None
