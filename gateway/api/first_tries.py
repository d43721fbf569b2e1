"""FirstTries: when a call that is being retried was first seen, so that it keeps its place."""

from collections import OrderedDict
from hashlib import blake2b

from gateway.core.types import TenantId

MAX_REMEMBERED = 4096
REMEMBERED_FOR_S = 600.0


class Try(bytes):
    """What a tenant sent, as a hash."""

    __slots__ = ()

    @classmethod
    def of(cls, tenant: TenantId, body: bytes) -> "Try":
        """Return what tells it from everything else that anybody sends."""
        digest = blake2b(tenant.encode("utf-8", "replace"), digest_size=16)
        digest.update(b"\0")
        digest.update(body)
        return cls(digest.digest())


class FirstTries:
    """Calls that failed or were refused of late, by what they said. Bounded."""

    def __init__(self) -> None:
        self._seen_at: OrderedDict[Try, float] = OrderedDict()

    def of(self, this: Try, now: float) -> float | None:
        """Return when the same tenant first sent this very body and did not get its answer."""
        seen_at = self._seen_at.get(this)
        return seen_at if seen_at is not None and now - seen_at <= REMEMBERED_FOR_S else None

    def remember(self, this: Try, seen_at: float) -> None:
        """The call got no answer: its client may try again."""
        known_at = self.of(this, seen_at)
        self._seen_at[this] = seen_at if known_at is None else min(known_at, seen_at)
        self._seen_at.move_to_end(this)
        if len(self._seen_at) > MAX_REMEMBERED:
            self._seen_at.popitem(last=False)

    def forget(self, this: Try) -> None:
        """The call got its answer: who sends the same body after that begins anew."""
        self._seen_at.pop(this, None)
