"""KeptIds: which backend keeps what it made under an id, so that later calls find it. Bounded."""

from collections import OrderedDict
from typing import NamedTuple

from gateway.core.types import BackendId, TenantId

MAX_KEPT = 20_000


class Keeper(NamedTuple):
    """Who keeps it."""

    backend: BackendId
    model: str


class KeptIds:
    """Ids of responses by tenant: one tenant's id leads nobody else anywhere."""

    def __init__(self) -> None:
        self._keepers: OrderedDict[tuple[TenantId, str], Keeper] = OrderedDict()

    def keeper(self, tenant: TenantId, identity: str) -> Keeper | None:
        """Return who keeps it; None: not known."""
        return self._keepers.get((tenant, identity))

    def remember(self, tenant: TenantId, identity: str, keeper: Keeper) -> None:
        """A backend has said under which id it keeps something."""
        self._keepers[tenant, identity] = keeper
        if len(self._keepers) > MAX_KEPT:
            self._keepers.popitem(last=False)
