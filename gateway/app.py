"""The composition root: the one place that knows every part and wires them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI
from pydantic import ValidationError

from gateway import __version__
from gateway.api import snapshots
from gateway.api.admin import admin_router
from gateway.api.door import Door
from gateway.api.endpoints import ENDPOINTS, passed_through
from gateway.api.front import Front
from gateway.api.models import models_router
from gateway.api.observe import observe_router
from gateway.api.openai import Api
from gateway.api.openapi import describe
from gateway.api.responses import install_error_handlers
from gateway.api.tenants import EverybodyAnonymous
from gateway.api.workflows import EndedWorkflows, workflows_router
from gateway.backends.dialects import dialect_of
from gateway.backends.engine_metrics import EngineMetrics
from gateway.backends.health import Probe, Vitals
from gateway.backends.http_client import HttpClient, Timeouts
from gateway.backends.offers import nameless, offers
from gateway.config import BackendEntry, PolicyEntry, Settings
from gateway.core.events import BackendChanged, ShutdownBegan
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, BackendState
from gateway.core.workflow import Workflows
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.runtime.clock import Clock, MonotonicClock
from gateway.runtime.driver import Driver, Observer
from gateway.telemetry.counters import Counters
from gateway.telemetry.decisions import DecisionLog, Recent
from gateway.telemetry.prometheus import BackendGauges, Gauges, render


class Gateway:
    """One gateway, built from its settings. `app` is what a server serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        predictor: LengthPredictor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self._specs = settings.workflow_specs
        deadline_ms = settings.slo.default_deadline_ms
        self.scheduler = Scheduler(
            (),
            settings.policy.to_core(),
            limits=settings.queue.to_core(),
            workflows=Workflows(
                self._specs,
                default_deadline_s=None if deadline_ms is None else deadline_ms / 1000,
            ),
        )
        self.counters = Counters(
            knows_model=lambda model: bool(self.scheduler.fleet.serving(model)),
            knows_workflow=self._specs.__contains__,
        )
        self._recent = Recent()
        self._ended = EndedWorkflows()
        self._log: DecisionLog | None = None
        observers: list[Observer] = [
            self.counters.observe,
            self._recent.observe,
            self._ended.observe,
        ]
        if settings.decision_log is not None:
            self._log = DecisionLog(settings.decision_log, self._clock.now())
            observers.append(self._log.observe)
        self._offers: dict[str, frozenset[BackendId]] = {}
        """Who offers each path; found out anew when a backend changes. Paths are ours: bounded."""
        self._listed: dict[BackendId, frozenset[str] | None] = {}
        self._entries = {BackendId(entry.name): entry for entry in settings.backends}
        self._probes = {name: self._probe(name, entry) for name, entry in self._entries.items()}
        self._clients = {
            name: self._client(entry, self._probes[name]) for name, entry in self._entries.items()
        }
        self.driver = Driver(self.scheduler, self._clients, self._clock, observers)
        self._predictor = predictor or LengthPredictor(PredictorSettings())
        self._is_stopping = False
        self.app = self._build_app()

    def begin_shutdown(self) -> None:
        """Take nothing new; what is here may finish."""
        self._is_stopping = True
        self.driver.feed(ShutdownBegan())

    def missing(self) -> str | None:
        """Return what keeps the gateway from serving; None: it is ready."""
        if self._is_stopping:
            return "shutting down"
        loads = self.scheduler.fleet.loads.values()
        if not any(load.state is BackendState.UP for load in loads):
            return "no backend is up"
        return None

    def render_metrics(self) -> bytes:
        """Return everything that is counted, as Prometheus reads it."""
        scheduler = self.scheduler
        backends = tuple(
            BackendGauges(
                name=name,
                is_up=load.state is BackendState.UP,
                in_flight=load.in_flight,
                backlog_s=load.backlog_s,
                kv_reserved_tokens=load.reserved_tokens,
            )
            for name, load in sorted(scheduler.fleet.loads.items())
        )
        gauges = Gauges(scheduler.waiting, scheduler.running, len(scheduler.workflows), backends)
        return render(self.counters, gauges)

    def _build_app(self) -> Front:
        settings = self._settings
        tenants = EverybodyAnonymous()
        door = Door(
            self.driver,
            self._clock,
            tenants=tenants,
            predictor=self._predictor,
            aliases=settings.aliases,
            alpha=lambda: snapshots.alpha_of(self.scheduler.placement.policy),
            offers=self._offering,
            models=self._models_of,
            max_body_bytes=settings.limits.max_body_bytes,
            max_upload_bytes=settings.limits.max_upload_bytes,
            patience_s=settings.limits.slow_reader_s,
        )
        rest = FastAPI(
            title="HexSage", version=__version__, lifespan=self._lifespan, redirect_slashes=False
        )
        install_error_handlers(rest)
        rest.include_router(observe_router(self.missing, self.render_metrics))
        created_at = int(datetime.now(UTC).timestamp())
        rest.include_router(models_router(self._catalog, settings.aliases, created_at, tenants))
        rest.include_router(
            workflows_router(
                self.scheduler,
                self.driver,
                self._clock,
                tenants=tenants,
                ended=self._ended,
                specs=self._specs,
            )
        )
        key = settings.admin_key
        rest.include_router(
            admin_router(
                self.scheduler,
                self.driver,
                self._clock,
                recent=self._recent,
                vitals=self._vitals,
                make_policy=self._changed_policy,
                admin_key=key.get_secret_value() if key else None,
                open_without_key=settings.is_loopback,
            )
        )
        endpoints = {**ENDPOINTS, **passed_through(settings.passthrough)}
        describe(rest, endpoints.values())
        return Front({path: Api(door, endpoint) for path, endpoint in endpoints.items()}, rest)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._predictor.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                probing = [tasks.create_task(probe.run()) for probe in self._probes.values()]
                # Whom the first look finds is known before the first client is served.
                for probe in self._probes.values():
                    await probe.has_looked.wait()
                yield
                for task in probing:
                    task.cancel()
        finally:
            for client in self._clients.values():
                await client.close()
            self._predictor.close()
            if self._log is not None:
                self._log.close()

    def _probe(self, name: BackendId, entry: BackendEntry) -> Probe:
        def on_change(vitals: Vitals | None) -> None:
            self._backend_changed(name, vitals)

        health = self._settings.health
        return Probe(
            entry.name,
            entry.url,
            on_change,
            api_key=entry.api_key,
            interval_s=health.interval_s,
            timeout_s=health.timeout_s,
            has_info=entry.kind == "tgi",
            reads_openapi=entry.kind != "tgi" and entry.endpoints is None,
        )

    def _client(self, entry: BackendEntry, probe: Probe) -> HttpClient:
        return HttpClient(
            entry.url,
            dialect_of(entry.kind, entry.priority_scheduling, entry.adapters),
            Timeouts(**self._settings.timeouts.model_dump()),
            api_key=entry.api_key,
            on_unreachable=probe.suspect,
        )

    def _backend_changed(self, name: BackendId, vitals: Vitals | None) -> None:
        entry = self._entries[name]
        if vitals is not None:
            self._listed[name] = vitals.paths
        self._offers.clear()
        load = self.scheduler.fleet.loads.get(name)
        known = load.backend.models if load else frozenset()
        max_in_flight = load.backend.max_in_flight if load else None
        models = frozenset([entry.model]) if entry.model else known
        if vitals is None:
            kv_tokens = load.backend.profile.kv_tokens if load else None
        else:
            kv_tokens = vitals.metrics.kv_tokens
            max_in_flight = vitals.max_in_flight
            models = models if entry.model else frozenset(vitals.models)
        if models:
            models |= set(entry.adapters)
        # Without a model there is nothing that it could be given.
        is_up = vitals is not None and bool(models)
        state = BackendState.UP if is_up else BackendState.DOWN
        self.driver.feed(BackendChanged(entry.to_core(models, kv_tokens, max_in_flight), state))

    def _offering(self, path: str) -> frozenset[BackendId]:
        """Return the backends whose API has a path, down ones too."""
        able = self._offers.get(path)
        if able is None:
            able = self._offers[path] = frozenset(
                name
                for name, entry in self._entries.items()
                if offers(path, entry.kind, self._listed_of(name, entry))
            )
        return able

    def _listed_of(self, name: BackendId, entry: BackendEntry) -> Collection[str] | None:
        if entry.endpoints is not None:
            return {nameless(path) for path in entry.endpoints}
        return self._listed.get(name)

    def _models_of(self, able: frozenset[BackendId]) -> frozenset[str]:
        """Return the models that these backends serve, without adapters and aliases."""
        loads = self.scheduler.fleet.loads
        served = (loads[name].backend.models for name in able if name in loads)
        return frozenset().union(*served)

    def _catalog(self) -> Mapping[str, int | None]:
        longest: dict[str, int | None] = dict.fromkeys(self.scheduler.fleet.models())
        for name, probe in self._probes.items():
            for model, tokens in (probe.vitals.models if probe.vitals else {}).items():
                served = self.scheduler.fleet.loads[name].backend.models
                if tokens is not None and model in served:
                    longest[model] = min(longest[model] or tokens, tokens)
        return longest

    def _vitals(self) -> dict[BackendId, EngineMetrics]:
        return {
            name: probe.vitals.metrics
            for name, probe in self._probes.items()
            if probe.vitals is not None
        }

    def _changed_policy(self, wish: dict[str, object]) -> Policy:
        configured = self._settings.policy.model_dump()
        try:
            return PolicyEntry.model_validate({**configured, **wish}).to_core()
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
