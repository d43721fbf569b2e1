"""Engines: the backends that there are now, with their probes and clients. They come and go.

A change takes effect in one step of the event loop: a call sees the engines before it or after it,
never a mixture. What runs on an engine that goes is finished there.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.backends.engine_metrics import EngineMetrics
from gateway.backends.health import Probe, Vitals
from gateway.backends.offers import nameless, offers
from gateway.clients import Clients, tls_of
from gateway.config.backends import BackendEntry
from gateway.config.scheduling import HealthEntry
from gateway.config.serving import LimitsEntry
from gateway.config.timeouts import TimeoutsEntry
from gateway.core.events import BackendChanged, BackendRemoved, EngineLooked, Event, Heard
from gateway.core.load import BackendLoad
from gateway.core.types import BackendId, BackendState

Loads = Mapping[BackendId, BackendLoad]


class Engines:
    """What is configured, as running things."""

    def __init__(
        self,
        loads: Loads,
        feed: Callable[[Event], None],
        *,
        timeouts: TimeoutsEntry,
        health: HealthEntry,
        limits: LimitsEntry,
    ) -> None:
        self.clients = Clients(limits, lambda name: feed(Heard(name)))
        self.entries: dict[BackendId, BackendEntry] = {}
        self._loads = loads
        self._feed = feed
        self.timeouts = timeouts
        self._health = health
        self._probes: dict[BackendId, Probe] = {}
        self._probing: dict[BackendId, asyncio.Task[None]] = {}
        self._believed: dict[BackendId, Vitals | None] = {}
        """What the scheduler has been told of each, by this probe or the one before it."""
        self._kv_tokens: dict[BackendId, int] = {}
        """What engines last said of their size."""
        self._drained: set[BackendId] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._listed: dict[BackendId, frozenset[str] | None] = {}
        self._offers: dict[str, frozenset[BackendId]] = {}
        """Who offers each path; found out anew when a backend changes. Paths are ours: bounded."""

    # What there is

    def vitals(self) -> dict[BackendId, EngineMetrics]:
        """What engines say of themselves."""
        seen = ((name, probe.vitals) for name, probe in self._probes.items())
        return {name: vitals.metrics for name, vitals in seen if vitals is not None}

    def kind_of(self, name: BackendId) -> str | None:
        """Return what kind of engine a backend is; None for one that is gone."""
        entry = self.entries.get(name)
        return None if entry is None else entry.kind

    def catalog(self, served: Collection[str]) -> dict[str, int | None]:
        """Return these models with the longest context that all of their backends take."""
        longest: dict[str, int | None] = dict.fromkeys(served)
        for name, probe in self._probes.items():
            load = self._loads.get(name)
            for model, tokens in (probe.vitals.models if probe.vitals else {}).items():
                if tokens is not None and load is not None and model in load.backend.models:
                    longest[model] = min(longest[model] or tokens, tokens)
        return longest

    def offering(self, path: str) -> frozenset[BackendId]:
        """Return the backends whose API has a path, down ones too."""
        able = self._offers.get(path)
        if able is None:
            able = self._offers[path] = frozenset(
                name
                for name, entry in self.entries.items()
                if offers(path, entry.kind, self._listed_of(name, entry))
            )
        return able

    def models_of(self, able: frozenset[BackendId]) -> frozenset[str]:
        """Return the models that these backends serve, without adapters and aliases."""
        served = (self._loads[name].backend.models for name in able if name in self._loads)
        return frozenset().union(*served)

    # Coming and going

    def set(
        self,
        entries: Sequence[BackendEntry],
        timeouts: TimeoutsEntry | None = None,
        health: HealthEntry | None = None,
    ) -> None:
        """From now on these are the backends; OSError or ValueError, and no change, if TLS files
        are none."""
        for entry in entries:
            tls_of(entry.tls)  # better a refusal now than half a change
        old = (self.timeouts, self._health.interval_s, self._health.timeout_s)
        self.timeouts = timeouts or self.timeouts
        self._health = health or self._health
        is_all_new = old != (self.timeouts, self._health.interval_s, self._health.timeout_s)
        wanted = {BackendId(entry.name): entry for entry in entries}
        for name in self.entries.keys() - wanted.keys():
            self.remove(name)
        for name, entry in wanted.items():
            if is_all_new or self.entries.get(name) != entry:
                self.put(entry)

    def put(self, entry: BackendEntry) -> None:
        """Add a backend, or let one that is here be another; OSError if its TLS files are none."""
        name = BackendId(entry.name)
        before = self.entries.get(name)
        vitals = self._believed.get(name)
        probe = self._probe(name, entry)
        self.clients.put(entry, self.timeouts, probe.suspect)
        self.entries[name] = entry
        self._probes[name] = probe
        self._stop_probing(name)
        self._start_probing(name)
        if before is not None and name in self._loads:
            if (before.url, before.kind) != (entry.url, entry.kind):
                # Another engine: nothing that is known of the old one's cache is true of it.
                self._kv_tokens.pop(name, None)
                self._changed(name, None)
            # What holds until the new probe has looked; one bad look does not end it.
            probe.vitals = vitals
            self._changed(name, vitals)

    def remove(self, name: BackendId) -> None:
        """Take a backend out; its running calls are finished."""
        del self.entries[name]
        del self._probes[name]
        self._listed.pop(name, None)
        self._kv_tokens.pop(name, None)
        self._believed.pop(name, None)
        self._drained.discard(name)
        self._offers.clear()
        self._stop_probing(name)
        self.clients.retire(name)
        self._feed(BackendRemoved(name))

    def drain(self, name: BackendId, *, drains: bool) -> None:
        """Give a backend nothing new, or let it have calls again."""
        (self._drained.add if drains else self._drained.discard)(name)
        load = self._loads.get(name)
        if load is not None and load.state is not BackendState.DOWN:
            state = BackendState.DRAINING if drains else BackendState.UP
            self._feed(BackendChanged(load.backend, state))

    def suspect(self, name: BackendId) -> None:
        """A call could not connect to a backend: look whether it is there."""
        probe = self._probes.get(name)
        if probe is not None:
            probe.suspect()

    # Life

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to probe; return when everybody has been looked at once."""
        self._tasks = tasks
        self.clients.start(tasks)
        for name in self._probes:
            self._start_probing(name)
        for probe in list(self._probes.values()):
            await probe.has_looked.wait()

    def stop(self) -> None:
        """Probe no more."""
        self._tasks = None
        self.clients.stop()
        for name in list(self._probing):
            self._stop_probing(name)

    async def close(self) -> None:
        """Close every connection."""
        await self.clients.close()

    def _start_probing(self, name: BackendId) -> None:
        if self._tasks is not None:
            self._probing[name] = self._tasks.create_task(self._probes[name].run())

    def _stop_probing(self, name: BackendId) -> None:
        task = self._probing.pop(name, None)
        if task is not None:
            task.cancel()

    def _probe(self, name: BackendId, entry: BackendEntry) -> Probe:
        def on_change(vitals: Vitals | None) -> None:
            if self._probes.get(name) is probe:  # not one that was replaced
                self._changed(name, vitals)

        def on_load(waiting: int | None) -> None:
            if self._probes.get(name) is probe:
                self._feed(EngineLooked(name, waiting))

        probe = Probe(
            entry.name,
            entry.url,
            on_change,
            on_load,
            api_key=entry.api_key,
            interval_s=self._health.interval_s,
            timeout_s=self._health.timeout_s,
            has_info=entry.kind == "tgi",
            reads_openapi=entry.kind != "tgi" and entry.endpoints is None,
            tls=tls_of(entry.tls),
        )
        return probe

    def _listed_of(self, name: BackendId, entry: BackendEntry) -> Collection[str] | None:
        if entry.endpoints is not None:
            return {nameless(path) for path in entry.endpoints}
        return self._listed.get(name)

    def _changed(self, name: BackendId, vitals: Vitals | None) -> None:
        entry = self.entries[name]
        self._believed[name] = vitals
        if vitals is not None:
            self._listed[name] = vitals.paths
        self._offers.clear()
        load = self._loads.get(name)
        known = load.backend.models if load else frozenset()
        max_in_flight = load.backend.max_in_flight if load else None
        models = frozenset([entry.model]) if entry.model else known
        if vitals is None:
            kv_tokens = load.backend.profile.kv_tokens if load else None
        else:
            # An engine that does not say for once is no larger than it said before.
            kv_tokens = vitals.metrics.kv_tokens or self._kv_tokens.get(name)
            if kv_tokens is not None:
                self._kv_tokens[name] = kv_tokens
            max_in_flight = vitals.max_in_flight
            models = models if entry.model else frozenset(vitals.models)
        if models:
            models |= set(entry.adapters)
        # Without a model there is nothing that it could be given.
        state = BackendState.UP if vitals is not None and models else BackendState.DOWN
        if state is BackendState.UP and name in self._drained:
            state = BackendState.DRAINING
        self._feed(BackendChanged(entry.to_core(models, kv_tokens, max_in_flight), state))
