"""Fleet: the backends, by model, and the average of those that serve one."""

from collections.abc import Iterable

from gateway.core.breaker import BreakerState
from gateway.core.calibration import Speed
from gateway.core.call import Call
from gateway.core.cost import average
from gateway.core.load import BackendLoad
from gateway.core.profiles import GpuProfile
from gateway.core.queues import FairShares
from gateway.core.types import Backend, BackendId, BackendState, InferenceRequest

MAX_RECALLED = 1000
"""Backends that are gone whose speeds are remembered."""

# Names of their own: to read an enum's member costs ten times as much as a global.
_UP = BackendState.UP
_CLOSED = BreakerState.CLOSED


class Pool:
    """The backends that a call may be given: they have the model, offer the API, hold the prompt.

    Whether they are up is not asked here. Calls of one pool wait in one queue, so that no call
    stands in the way of others that could go elsewhere.
    """

    __slots__ = ("loads", "smallest_kv_tokens", "turn")

    def __init__(self, loads: Iterable[BackendLoad]) -> None:
        self.loads = tuple(loads)
        """In ascending order of id."""
        self.smallest_kv_tokens = min((load.kv_tokens for load in self.loads), default=0)
        self.turn = 0
        """Decisions taken for it, for policies that take turns."""

    def open(self) -> tuple[BackendLoad, ...]:
        """Return the backends that may be given calls now.

        If the breakers keep out all that are up, they have lost their point: then none counts.
        """
        for load in self.loads:
            if load.state is not _UP or load.breaker.state is not _CLOSED:
                break
        else:
            return self.loads
        up = tuple(load for load in self.loads if load.state is _UP)
        return tuple(load for load in up if load.breaker.admits) or up


class Fleet:
    """What there is to run on. Loads of one model are kept in ascending order of id."""

    def __init__(self, backends: Iterable[Backend], shares: FairShares) -> None:
        self._shares = shares
        self.loads: dict[BackendId, BackendLoad] = {}
        self.recalled: dict[BackendId, Speed] = {}
        """What is known of backends' speeds from earlier; read when they come."""
        self._by_model: dict[str, list[BackendLoad]] = {}
        self._references: dict[str, GpuProfile] = {}
        self._pools: dict[tuple[BackendId, ...], Pool] = {}
        self._pool_by_need: dict[tuple[str, frozenset[BackendId] | None], Pool] = {}
        for backend in backends:
            self.loads[backend.id] = BackendLoad(backend, shares=shares)
        self._index()

    def models(self) -> list[str]:
        """Every model that some backend serves."""
        return sorted(self._by_model)

    def serving(self, model: str) -> list[BackendLoad]:
        """Every backend that has the model, whatever its state."""
        return self._by_model.get(model, [])

    def able(self, request: InferenceRequest) -> list[BackendLoad]:
        """Every backend that has the model and offers the API the request needs."""
        eligible = request.eligible
        loads = self.serving(request.model)
        return loads if eligible is None else [load for load in loads if load.id in eligible]

    def pool(self, request: InferenceRequest) -> Pool:
        """Return the backends that may be given this request: the able that can hold its prompt.

        The same object for the same backends, for as long as `is_current`.
        """
        need = (request.model, request.eligible)
        pool = self._pool_by_need.get(need)
        if pool is None:
            pool = self._pool_by_need[need] = self._pool_of(self.able(request))
        if request.prompt_tokens >= pool.smallest_kv_tokens:
            return self._pool_of(
                [load for load in pool.loads if load.kv_tokens > request.prompt_tokens]
            )
        return pool

    def is_current(self, pool: Pool) -> bool:
        """Return whether no backend has come, gone or become able to do something else since."""
        return self._pools.get(tuple(load.id for load in pool.loads)) is pool

    def open_for(self, call: Call) -> tuple[BackendLoad, ...]:
        """Backends that may be given this call now; those that failed it only if all have."""
        pool = self.pool(call.request)
        return untried(call, pool, pool.open())

    def reference(self, model: str) -> GpuProfile | None:
        """Return the average backend of a model; None if nothing serves it."""
        return self._references.get(model)

    def change(self, backend: Backend, state: BackendState) -> BackendLoad:
        """Add a backend, or give one that is here a new configuration and state."""
        load = self.loads.get(backend.id)
        if load is None:
            load = self.loads[backend.id] = BackendLoad(backend, state, self._shares)
            if backend.id in self.recalled:
                load.recall(self.recalled.pop(backend.id))
            self._forget_pools()
        else:
            old = load.backend
            load.configure(backend, state)
            if old.models != backend.models or old.profile.kv_tokens != load.kv_tokens:
                self._forget_pools()
        self._index()
        return load

    def remove(self, backend_id: BackendId) -> BackendLoad | None:
        """Take a backend out; its running calls keep the load they hold."""
        load = self.loads.pop(backend_id, None)
        if load is not None:
            self.recalled[backend_id] = load.calibration.saved()
            if len(self.recalled) > MAX_RECALLED:
                del self.recalled[next(iter(self.recalled))]
            load.state = BackendState.DOWN
            self._forget_pools()
            self._index()
        return load

    def _pool_of(self, loads: list[BackendLoad]) -> Pool:
        ids = tuple(load.id for load in loads)
        pool = self._pools.get(ids)
        if pool is None:
            pool = self._pools[ids] = Pool(loads)
        return pool

    def _forget_pools(self) -> None:
        self._pools.clear()
        self._pool_by_need.clear()

    def recalibrated(self, load: BackendLoad) -> None:
        """What is known of a backend's speed has changed, so the averages it is in have, too."""
        if self.loads.get(load.id) is load:
            self._refer(load.backend.models)

    def _index(self) -> None:
        self._by_model = {}
        self._references = {}
        for _, load in sorted(self.loads.items()):
            for model in load.backend.models:
                self._by_model.setdefault(model, []).append(load)
        self._refer(self._by_model)

    def _refer(self, models: Iterable[str]) -> None:
        for model in models:
            self._references[model] = average([load.profile for load in self._by_model[model]])


def untried(call: Call, pool: Pool, open_loads: tuple[BackendLoad, ...]) -> tuple[BackendLoad, ...]:
    """Return the open backends of a pool that have not failed the call.

    If all have, those that breakers keep out: they are better than one that has failed this very
    call. If these have, too, all that are open.
    """
    if not call.tried:
        return open_loads
    loads = tuple(load for load in open_loads if load.id not in call.tried)
    if loads:
        return loads
    kept_out = (load for load in pool.loads if load.state is _UP and load.id not in call.tried)
    return tuple(kept_out) or open_loads
