"""TenantResolver: who is charged for a call."""

from collections.abc import Iterable
from typing import Protocol

from gateway.backends.base import Header
from gateway.core.types import ANONYMOUS, TenantId


class TenantResolver(Protocol):
    """Tells from a request's headers whose it is."""

    def resolve(self, headers: Iterable[Header]) -> TenantId:
        """Return the tenant; ApiError 401 or 403 without a valid key."""


class EverybodyAnonymous:
    """One tenant for all. The configuration allows this on loopback or by explicit consent only."""

    def resolve(self, headers: Iterable[Header]) -> TenantId:  # noqa: ARG002 - nobody has a key
        """Return the tenant."""
        return ANONYMOUS
