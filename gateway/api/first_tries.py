"""FirstTries: when a call that is being retried was first seen, so that it keeps its place."""

from collections import OrderedDict
from hashlib import blake2b

from gateway.core.types import TenantId

MAX_REMEMBERED = 4096
REMEMBERED_FOR_S = 600.0


class FirstTries:
    """Calls that failed or were refused of late, by what they said. Bounded."""

    def __init__(self) -> None:
        self._seen_at: OrderedDict[bytes, float] = OrderedDict()

    def of(self, tenant: TenantId, body: bytes, now: float) -> float | None:
        """Return when the same tenant first sent this very body and did not get its answer."""
        seen_at = self._seen_at.get(_key(tenant, body))
        return seen_at if seen_at is not None and now - seen_at <= REMEMBERED_FOR_S else None

    def remember(self, tenant: TenantId, body: bytes, seen_at: float) -> None:
        """The call got no answer: its client may try again."""
        key = _key(tenant, body)
        self._seen_at.setdefault(key, seen_at)
        self._seen_at.move_to_end(key)
        if len(self._seen_at) > MAX_REMEMBERED:
            self._seen_at.popitem(last=False)


def _key(tenant: TenantId, body: bytes) -> bytes:
    digest = blake2b(tenant.encode("utf-8", "replace"), digest_size=16)
    digest.update(b"\0")
    digest.update(body)
    return digest.digest()
