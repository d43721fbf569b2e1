"""Worker: the composition root of a process that accepts and relays, and decides nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from gateway.api.door import Door
from gateway.api.endpoints import ENDPOINTS, observed, passed_through
from gateway.api.front import Front
from gateway.api.openai import Api
from gateway.api.tenants import EverybodyAnonymous, KeyHolders
from gateway.clients import Clients
from gateway.config.backends import BackendEntry
from gateway.config.settings import Settings
from gateway.config.timeouts import TimeoutsEntry
from gateway.core.types import BackendId
from gateway.runtime.clock import MonotonicClock
from gateway.workers.fleet import Fleet
from gateway.workers.proxy import Proxy
from gateway.workers.remote import RemoteDesk
from gateway.workers.vitals import Vitals
from gateway.workers.ways import Ways
from gateway.workers.wire import Up

NOBODY: frozenset[BackendId] = frozenset()

log = logging.getLogger(__name__)


class Worker:
    """One worker. `app` is what a server serves; it starts when the scheduler process is there."""

    def __init__(
        self, settings: Settings, hub: Path, scheduler: Path, vitals: Vitals | None = None
    ) -> None:
        """`hub` and `scheduler` are the Unix sockets for calls and for everything else."""
        self._vitals = vitals or Vitals()
        self._hub = hub
        self._clock = MonotonicClock()
        self._fleet = Fleet()
        self._entries: dict[str, BackendEntry] = {}
        self._offers: dict[str, frozenset[BackendId]] = {}
        self._keys: KeyHolders | None = None
        if settings.keys_file is not None:
            self._keys = KeyHolders(allow_anonymous=settings.allow_anonymous)
        self.clients = Clients(settings.limits, lambda name: self.desk.tell([Up.HEARD, name]))
        self.desk = RemoteDesk(Ways(self.clients.by_name), self._clock, self._learn)
        self._proxy = Proxy(scheduler)
        self._aliases: dict[str, str] = {}
        self._model_timeouts: dict[str, dict[str, float]] = {}
        self._queue_timeouts: dict[str, float] = {}
        limits = settings.limits
        door = Door(
            self.desk,
            self._clock,
            tenants=self._keys or EverybodyAnonymous(),
            kept=self.desk,
            aliases=self._aliases,
            offers=lambda path: self._offers.get(path, NOBODY),
            models=self._models_of,
            max_body_bytes=limits.max_body_bytes,
            max_upload_bytes=limits.max_upload_bytes,
            max_json_depth=limits.max_json_depth,
            body_timeout_s=limits.body_timeout_s,
            patience_s=limits.slow_reader_s,
            timeouts=self._model_timeouts,
            queue_timeouts=self._queue_timeouts,
        )
        endpoints = {**ENDPOINTS, **passed_through(settings.passthrough)}
        if settings.observe_progress:
            endpoints = observed(endpoints)
        rest = Starlette(
            routes=[Route("/healthz", _healthz), Mount("/", self._proxy)], lifespan=self._lifespan
        )
        self.app = Front({path: Api(door, endpoint) for path, endpoint in endpoints.items()}, rest)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as tasks:
                self.clients.start(tasks)
                connecting = tasks.create_task(self.desk.stay_connected(self._hub))
                await self.desk.has_fleet.wait()
                telling = tasks.create_task(self._vitals.keep_telling(self.desk.tell))
                yield
                telling.cancel()
                connecting.cancel()
                self.clients.stop()
        finally:
            self.desk.close()
            await self._proxy.close()
            await self.clients.close()

    def _learn(self, fleet: Fleet) -> None:
        """Go by this from now on. No `await`: a call sees the old one or the new one."""
        old, self._fleet = self._fleet, fleet
        for name in self._entries.keys() - {entry.name for entry in fleet.backends}:
            self.clients.retire(BackendId(name))
            del self._entries[name]
        for entry in fleet.backends:
            if entry != self._entries.get(entry.name) or fleet.timeouts != old.timeouts:
                self._reach(entry, fleet.timeouts)
        self._offers = {
            path: frozenset(BackendId(name) for name in names)
            for path, names in fleet.offers.items()
        }
        if self._keys is not None:
            self._keys.replace(fleet.keys, self._clock.now())
        for mine, theirs in (
            (self._aliases, fleet.aliases),
            (self._queue_timeouts, fleet.queue_timeouts),
            (self._model_timeouts, fleet.model_timeouts),
        ):
            mine.clear()
            mine.update(theirs)  # type: ignore[arg-type]

    def _reach(self, entry: BackendEntry, timeouts: TimeoutsEntry) -> None:
        suspect = partial(self.desk.tell, [Up.SUSPECT, entry.name])
        try:
            self.clients.put(entry, timeouts, suspect)
        except OSError as error:
            log.warning(
                "backend %s: tls: %s; this worker goes on with what it knew of it before, if "
                "anything",
                entry.name,
                error,
            )
        else:
            self._entries[entry.name] = entry

    def _models_of(self, able: frozenset[BackendId]) -> frozenset[str]:
        models = self._fleet.models
        return frozenset(model for name in able for model in models.get(name, ()))


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})
