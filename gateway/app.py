"""The composition root: the one place that knows every part and wires them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI

from gateway import __version__
from gateway.api import snapshots
from gateway.api.admin import admin_router
from gateway.api.desk import LocalDesk, Register
from gateway.api.door import Door
from gateway.api.endpoints import ENDPOINTS, observed, passed_through
from gateway.api.front import Front
from gateway.api.kept import KeptIds
from gateway.api.models import models_router
from gateway.api.observe import health_router, metrics_router
from gateway.api.openai import Api
from gateway.api.openapi import describe
from gateway.api.overview import Sources
from gateway.api.responses import install_error_handlers
from gateway.api.tenants import EverybodyAnonymous, KeyHolders, TenantResolver
from gateway.api.workflows import EndedWorkflows, workflows_router
from gateway.config.settings import Settings
from gateway.core.admission import UNBOUNDED
from gateway.core.events import PolicyChanged, ShutdownBegan
from gateway.core.queues import FairShares
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendState
from gateway.core.workflow import Workflows
from gateway.dashboard.pages import dashboard_router
from gateway.engines import Engines
from gateway.exposition import gauges
from gateway.keys_file import KeyEntry, read_keys
from gateway.memory import JOURNAL, Memory
from gateway.mistakes import ConfigError
from gateway.operations import Operations
from gateway.policy_in_force import PolicyInForce
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.reload import RELOADED, Reloader, rules_of
from gateway.runtime.clock import Clock, MonotonicClock
from gateway.runtime.driver import Driver, Observer
from gateway.runtime.lag import LoopLag
from gateway.sim.recorder import Recorder
from gateway.telemetry.counters import Counters
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.gauges import WorkerGauges
from gateway.telemetry.prometheus import render
from gateway.telemetry.watch import Watch
from gateway.traces import Traces
from gateway.tuning import live_tuner

_T = TypeVar("_T")


class Gateway:
    """One gateway, built from its settings. `app` is what a server serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        predictor: LengthPredictor | None = None,
        clock: Clock | None = None,
        load: Callable[[], Settings] | None = None,
        config_path: Path | None = None,
    ) -> None:
        """Raise ConfigError for a keys file or TLS files that are none.

        `load` reads the settings anew, for reloads; `config_path` is watched for changes.
        """
        self._settings = self._started_with = settings
        self._clock = clock or MonotonicClock()
        self._specs = settings.workflow_specs
        self.aliases = settings.aliases
        self.model_timeouts = settings.model_timeouts
        self.queue_timeouts = settings.queue_timeouts
        keys = read_keys(settings.keys_file) if settings.keys_file else ()
        self.keys: KeyHolders | None = None
        if settings.keys_file is not None:
            self.keys = KeyHolders(allow_anonymous=settings.allow_anonymous)
            self.keys.replace(keys, self._clock.now())
        self.tenants: TenantResolver = self.keys or EverybodyAnonymous()
        rules = rules_of(settings, keys)
        self.scheduler = Scheduler(
            (),
            settings.policy.to_core(),
            limits=rules.limits or UNBOUNDED,
            workflows=Workflows(self._specs, default_deadline_s=rules.default_deadline_s),
            shares=FairShares(rules.weights),
            health=rules.health,
            retries=rules.retries,
            learns_profiles=settings.learn_profiles,
        )
        self.counters = Counters(
            knows_model=lambda model: bool(self.scheduler.fleet.serving(model)),
            declared=self._specs,
        )
        self._lag = LoopLag()
        self._watch = Watch(self.scheduler, self._clock.now())
        self._ended = EndedWorkflows()
        self._memory: Memory | None = None
        if settings.state_dir is not None:
            self._memory = Memory(settings.state_dir, self.scheduler, settings.policy)
        self._policy = PolicyInForce(settings.policy, self._memory)
        recorder = Recorder()
        self._tuner = live_tuner(
            settings.tuner,
            self.scheduler,
            recorder,
            self._clock,
            lambda: self._policy.entry,
            lambda wish: self.driver.feed(PolicyChanged(self._policy.change(wish))),
        )
        self._log: DecisionLog | None = None
        self.observers: list[Observer] = [
            self.counters.observe,
            self._watch.observe,
            self._ended.observe,
            recorder.observe,
        ]
        if settings.decision_log is not None:
            self._log = _decision_log(settings.decision_log, self._clock.now())
            self.observers.append(self._log.observe)
        self.engines = Engines(
            self.scheduler.fleet.loads,
            lambda event: self.driver.feed(event),
            timeouts=settings.timeouts,
            health=settings.health,
            limits=settings.limits,
        )
        kind_of = self.engines.kind_of
        self.traces = Traces(settings.telemetry, self.scheduler, self._clock, kind_of)
        self.observers += self.traces.observers
        self.driver = Driver(
            self.scheduler,
            self.engines.clients.by_name,
            self._clock,
            self.observers,
            self.traces.traceparent,
        )
        self._set_engines(settings)
        journal = settings.state_dir / JOURNAL if settings.state_dir else None
        self._predictor = predictor or LengthPredictor(PredictorSettings(journal=journal))
        self._config_path = config_path
        self._reloader: Reloader | None = None
        if load is not None:
            self._reloader = Reloader(load, self._apply, self._files)
        self.operations = Operations(self.engines, self.driver.feed, self._reloader)
        self.workers: Callable[[], tuple[WorkerGauges, ...]] = tuple
        """Tells of the workers, where there are some. Whoever has them knows."""
        self._is_stopping = self._is_over = False
        self.app, self.admin_app = self._build_apps()

    def withdraw(self) -> None:
        """Be ready no longer, so that balancers turn away; who comes all the same is served."""
        self._is_stopping = True

    def begin_shutdown(self) -> None:
        """Take nothing new; what is here may finish."""
        self._is_stopping = self._is_over = True
        self.driver.feed(ShutdownBegan())

    def missing(self) -> str | None:
        """Return what keeps the gateway from serving; None: it is ready."""
        if self._is_stopping:
            return "shutting down"
        loads = self.scheduler.fleet.loads.values()
        if not any(load.state is BackendState.UP for load in loads):
            return "no backend is up"
        return None

    def _apply(self, settings: Settings, keys: Sequence[KeyEntry]) -> list[str]:
        """Put other settings in force. No `await`: a call sees the old ones or the new ones."""
        self._set_engines(settings)
        if self.keys is not None:
            self.keys.replace(keys, self._clock.now())
        _refill(self.aliases, settings.aliases)
        _refill(self.model_timeouts, settings.model_timeouts)
        _refill(self.queue_timeouts, settings.queue_timeouts)
        _refill(self._specs, settings.workflow_specs)
        self.driver.feed(rules_of(settings, keys))
        if settings.policy != self._settings.policy:
            self.driver.feed(PolicyChanged(self._policy.configure(settings.policy)))
        self._settings = settings
        return [
            name
            for name in Settings.model_fields
            if name not in RELOADED and getattr(settings, name) != getattr(self._started_with, name)
        ]

    def _set_engines(self, settings: Settings) -> None:
        try:
            self.engines.set(settings.backends, settings.timeouts, settings.health)
        except OSError as error:
            raise ConfigError([f"backends: tls: {error}"]) from None

    def render_metrics(self) -> bytes:
        """Return everything that is counted, as Prometheus reads it."""
        now = gauges(
            self.scheduler,
            self._predictor,
            self._tuner,
            tenants=[] if self.keys is None else [key.owner for key in self.keys.entries],
            limited={} if self.keys is None else self.keys.refused(),
            alpha=self.alpha(),
            reloads_refused=self._reloader.refused if self._reloader else 0,
            workers=self.workers(),
        )
        return render(self.counters, now, self._lag.seconds, self.register.overhead_s)

    def _build_apps(self) -> tuple[Front, FastAPI]:
        """Return what clients are served, and /admin; the same routes if they share a port."""
        settings = self._settings
        tenants = self.tenants
        self.register = Register(
            self._predictor,
            self._clock,
            self._watch.requests.expect,
            self.traces.introduce,
            lambda *of: self.scheduler.admission.refusal(*of) is not None,
        )
        door = Door(
            LocalDesk(self.driver, self.register, self.alpha),
            self._clock,
            tenants=tenants,
            kept=KeptIds(),
            aliases=self.aliases,
            offers=self.engines.offering,
            models=self.engines.models_of,
            max_body_bytes=settings.limits.max_body_bytes,
            max_upload_bytes=settings.limits.max_upload_bytes,
            max_json_depth=settings.limits.max_json_depth,
            body_timeout_s=settings.limits.body_timeout_s,
            patience_s=settings.limits.slow_reader_s,
            timeouts=self.model_timeouts,
            queue_timeouts=self.queue_timeouts,
        )
        rest = FastAPI(
            title="HexSage", version=__version__, lifespan=self._lifespan, redirect_slashes=False
        )
        install_error_handlers(rest)
        admin = rest
        if settings.admin.port is not None:
            admin = FastAPI(title="HexSage", version=__version__, redirect_slashes=False)
            install_error_handlers(admin)
            admin.include_router(health_router(self.missing))
        rest.include_router(health_router(self.missing))
        admin.include_router(metrics_router(self.render_metrics))
        created_at = int(datetime.now(UTC).timestamp())
        rest.include_router(models_router(self._catalog, self.aliases, created_at, tenants))
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
        admin.include_router(
            admin_router(
                self.driver,
                self._sources(),
                make_policy=self._policy.change,
                admin_key=key.get_secret_value() if key else None,
                open_without_key=settings.is_admin_loopback,
                fleet=self.operations,
                is_over=lambda: self._is_over,
            )
        )
        admin.include_router(dashboard_router())
        endpoints = {**ENDPOINTS, **passed_through(settings.passthrough)}
        if settings.observe_progress:
            endpoints = observed(endpoints)
        describe(rest, endpoints.values())
        front = Front({path: Api(door, endpoint) for path, endpoint in endpoints.items()}, rest)
        return front, admin

    def _sources(self) -> Sources:
        return Sources(
            scheduler=self.scheduler,
            clock=self._clock,
            vitals=self.engines.vitals,
            watch=self._watch,
            predictor=self._predictor,
            tuner=self._tuner,
            missing=self.missing,
        )

    def alpha(self) -> float | None:
        """Return the policy's alpha; None if it has none."""
        return snapshots.alpha_of(self.scheduler.placement.policy)

    def _catalog(self) -> Mapping[str, int | None]:
        return self.engines.catalog(self.scheduler.fleet.models())

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._predictor.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._memory is not None:
                    self._memory.restore(self.driver.feed, self._policy.recall)
                # Whom the first look finds is known before the first client is served.
                await self.engines.start(tasks)
                chores = [tasks.create_task(chore) for chore in self._chores()]
                yield
                for task in chores:
                    task.cancel()
                self.engines.stop()
        finally:
            await self.engines.close()
            if self._memory is not None:
                await self._memory.save()
            self._predictor.close()
            if self._log is not None:
                self._log.close()
            await self.traces.close()

    def _chores(self) -> Iterator[Coroutine[None, None, None]]:
        yield self._lag.watch()
        if self._memory is not None:
            yield self._memory.keep()
        if self._settings.tuner.enabled:
            yield self._tuner.run()
        if self._reloader is not None and self._settings.watch_s:
            yield self._reloader.watch(self._settings.watch_s)

    def _files(self) -> list[Path]:
        return [path for path in (self._config_path, self._settings.keys_file) if path is not None]


def _refill(old: dict[str, _T], new: Mapping[str, _T]) -> None:
    """Let a mapping that others hold have another content."""
    old.clear()
    old.update(new)


def _decision_log(path: Path, now: float) -> DecisionLog:
    try:
        return DecisionLog(path, now)
    except OSError as error:
        raise ConfigError([f"decision_log: {path} cannot be written ({error.strerror})"]) from None
