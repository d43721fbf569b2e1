"""Admission: may this call wait? And if not: when might it be worth asking again?"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from gateway.core.outcomes import RejectReason
from gateway.core.record import Record
from gateway.core.types import InferenceRequest


class Unreachable(StrEnum):
    """What to do with a call that will probably miss its deadline."""

    QUEUE = "queue"
    REJECT = "reject"
    DEMOTE = "demote"
    """Let it run after everything that can still be on time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits(Record):
    """How much may wait (held or queued), and for how long; 0: what cannot start is refused."""

    max_requests: int = 1000
    max_bytes: int = 256 * 1024 * 1024
    """Request bodies waiting in memory."""
    max_predicted_s: float = inf
    """Predicted seconds of work waiting, an average backend's."""
    max_model_share: float = 1.0
    """Share of each of these that one model's calls may fill."""
    max_backend_share: float = 1.0
    """Share of `max_requests` that may wait for one backend, where a policy binds at arrival."""
    max_tenant_share: float = 1.0
    """Share of each of the three that one tenant may fill."""
    tenant_shares: Mapping[str, float] = field(default_factory=dict)
    """Of tenants for whom it is another share."""
    timeout_s: float = 120.0
    on_unreachable_deadline: Unreachable = Unreachable.QUEUE
    late_probability: float = 0.95
    """A deadline counts as unreachable when the call is late with this probability."""

    def __post_init__(self) -> None:
        if self.max_requests < 0 or self.max_bytes < 0 or self.timeout_s <= 0:
            raise ValueError("queue limits must be >= 0 and the timeout > 0")
        for name in ("max_model_share", "max_backend_share", "max_tenant_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], not {getattr(self, name)}")

    def share(self, tenant: str) -> float:
        """Return the share of the queue that a tenant may fill."""
        return self.tenant_shares.get(tenant, self.max_tenant_share)

    @property
    def max_backend_requests(self) -> float:
        """Calls that may wait for one backend."""
        return self.max_requests * self.max_backend_share


UNBOUNDED = QueueLimits(max_requests=1 << 62, max_bytes=1 << 62, timeout_s=inf)
"""For simulations: nothing is ever turned away."""


@dataclass(slots=True)
class Waiting:
    """What waits, in sums."""

    requests: int = 0
    body_bytes: int = 0
    predicted_s: float = 0.0

    def add(self, body_bytes: int, predicted_s: float) -> None:
        """One more call waits."""
        self.requests += 1
        self.body_bytes += body_bytes
        self.predicted_s += predicted_s

    def remove(self, body_bytes: int, predicted_s: float) -> None:
        """A call waits no longer."""
        self.requests -= 1
        self.body_bytes -= body_bytes
        self.predicted_s = self.predicted_s - predicted_s if self.requests else 0.0

    def exceeds(
        self, limits: QueueLimits, share: float, body_bytes: int, *, further: int = 1
    ) -> bool:
        """Return whether `further` calls of `body_bytes` would not fit `share` of the limits."""
        return (
            self.requests + further > limits.max_requests * share
            or self.body_bytes + body_bytes > limits.max_bytes * share
            or self.predicted_s > limits.max_predicted_s * share
        )


class Admission:
    """Counts what waits, in all, by model and by tenant, and predicts when room comes back."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.total = Waiting()
        self._models: dict[str, Waiting] = {}
        self._tenants: dict[str, Waiting] = {}
        self._starts: deque[float] = deque(maxlen=64)
        """When the last calls left a queue that others stayed in: the measured drain rate."""

    def refusal(self, tenant: str, model: str, body_bytes: int) -> RejectReason | None:
        """Return why one more call may not wait; None if it may."""
        limits = self.limits
        if self.total.exceeds(limits, 1.0, body_bytes):
            return RejectReason.QUEUE_FULL
        share = limits.max_model_share
        if share < 1.0 and self._part(self._models, model).exceeds(limits, share, body_bytes):
            return RejectReason.QUEUE_FULL
        share = limits.share(tenant)
        if share < 1.0 and self._part(self._tenants, tenant).exceeds(limits, share, body_bytes):
            return RejectReason.TENANT_QUEUE_FULL
        return None

    def entered(self, request: InferenceRequest, predicted_s: float) -> None:
        """A call waits from now on."""
        self.total.add(request.body_bytes, predicted_s)
        for parts, key in ((self._models, request.model), (self._tenants, request.tenant)):
            part = parts.get(key)
            if part is None:
                part = parts[key] = Waiting()
            part.add(request.body_bytes, predicted_s)

    def left(self, request: InferenceRequest, predicted_s: float) -> None:
        """A call that waited does so no longer."""
        self.total.remove(request.body_bytes, predicted_s)
        for parts, key in ((self._models, request.model), (self._tenants, request.tenant)):
            part = parts[key]
            part.remove(request.body_bytes, predicted_s)
            if not part.requests:
                del parts[key]

    def started(self, now: float) -> None:
        """A waiting call was sent to a backend."""
        if self.total.requests:
            self._starts.append(now)
        else:
            self._starts.clear()

    @property
    def tenants(self) -> dict[str, Waiting]:
        """What waits, by tenant."""
        return dict(self._tenants)

    def drain_s(self, now: float, ahead: int, parallel_s: float) -> float:
        """Return when `ahead` waiting calls will have left, in seconds from `now`.

        From the rate at which calls left of late; `parallel_s`, predicted work divided by what
        runs side by side, stands in until there is one.
        """
        if len(self._starts) >= 8:
            span_s = max(now - self._starts[0], 1e-3)
            return ahead * span_s / len(self._starts)
        return parallel_s

    @staticmethod
    def _part(parts: Mapping[str, Waiting], key: str) -> Waiting:
        return parts.get(key) or Waiting()
