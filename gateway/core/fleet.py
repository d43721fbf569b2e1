"""Fleet: the backends, by model, and the average of those that serve one."""

from collections.abc import Iterable

from gateway.core.call import Call
from gateway.core.cost import average
from gateway.core.load import BackendLoad
from gateway.core.profiles import GpuProfile
from gateway.core.queues import FairShares
from gateway.core.types import Backend, BackendId, BackendState


class Fleet:
    """What there is to run on. Loads of one model are kept in ascending order of id."""

    def __init__(self, backends: Iterable[Backend], shares: FairShares) -> None:
        self._shares = shares
        self.loads: dict[BackendId, BackendLoad] = {}
        self._by_model: dict[str, list[BackendLoad]] = {}
        self._references: dict[str, GpuProfile] = {}
        for backend in backends:
            self.loads[backend.id] = BackendLoad(backend, shares=shares)
        self._index()

    def models(self) -> list[str]:
        """Every model that some backend serves."""
        return sorted(self._by_model)

    def serving(self, model: str) -> list[BackendLoad]:
        """Every backend that has the model, whatever its state."""
        return self._by_model.get(model, [])

    def able(self, call: Call) -> list[BackendLoad]:
        """Every backend that has the model and offers the API the call needs."""
        eligible = call.request.eligible
        loads = self.serving(call.request.model)
        return loads if eligible is None else [load for load in loads if load.id in eligible]

    def open_for(self, call: Call) -> list[BackendLoad]:
        """Backends that may be given this call now; those that failed it only if all have."""
        loads = [load for load in self.able(call) if load.state is BackendState.UP]
        if call.tried:
            return [load for load in loads if load.id not in call.tried] or loads
        return loads

    def reference(self, model: str) -> GpuProfile | None:
        """Return the average backend of a model; None if nothing serves it."""
        return self._references.get(model)

    def change(self, backend: Backend, state: BackendState) -> BackendLoad:
        """Add a backend, or give one that is here a new configuration and state."""
        load = self.loads.get(backend.id)
        if load is None:
            load = self.loads[backend.id] = BackendLoad(backend, state, self._shares)
        else:
            load.configure(backend, state)
        self._index()
        return load

    def remove(self, backend_id: BackendId) -> BackendLoad | None:
        """Take a backend out; its running calls keep the load they hold."""
        load = self.loads.pop(backend_id, None)
        if load is not None:
            load.state = BackendState.DOWN
            self._index()
        return load

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
