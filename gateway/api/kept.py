"""KeptIds: which backend keeps what it made under an id, and for whom. Bounded."""

from collections import OrderedDict
from typing import NamedTuple, Protocol

from gateway.core.types import BackendId, TenantId

MAX_KEPT = 20_000


class Keeper(NamedTuple):
    """Who keeps it, and whose it is."""

    tenant: TenantId
    backend: BackendId
    model: str
    public_model: str
    """As the client called it."""


class Keepers(Protocol):
    """Ids of responses. Engines know no tenants, so whose an id is must be known here."""

    async def keeper(self, identity: str) -> Keeper | None:
        """Return who keeps it; None: not known."""

    async def remember(self, identity: str, keeper: Keeper) -> None:
        """A backend has said under which id it keeps something; whoever asks now is told."""


class KeptIds:
    """Those of this process."""

    def __init__(self) -> None:
        self._keepers: OrderedDict[str, Keeper] = OrderedDict()

    def find(self, identity: str) -> Keeper | None:
        """Return who keeps it; None: not known."""
        return self._keepers.get(identity)

    def note(self, identity: str, keeper: Keeper) -> None:
        """A backend has said under which id it keeps something."""
        self._keepers[identity] = keeper
        if len(self._keepers) > MAX_KEPT:
            self._keepers.popitem(last=False)

    async def keeper(self, identity: str) -> Keeper | None:
        """See Keepers."""
        return self.find(identity)

    async def remember(self, identity: str, keeper: Keeper) -> None:
        """See Keepers."""
        self.note(identity, keeper)
