"""Run: a request on its way, as whoever decides about it sees it, and the two ways it can go."""

from typing import NamedTuple, Protocol

from gateway.backends.base import Answer
from gateway.core.commands import Start
from gateway.core.outcomes import RejectReason
from gateway.core.types import RequestId


class Refused(Exception):
    """The scheduler turned a request away, before or after it was queued or started."""

    def __init__(self, reason: RejectReason, retry_after_s: float | None = None) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Served(NamedTuple):
    """An answer that has begun, and why it comes from where it comes."""

    answer: Answer
    start: Start


class Run(Protocol):
    """A request that has arrived, and what becomes of it. Nothing here may raise."""

    @property
    def id(self) -> RequestId:
        """The request's."""

    def start(self, start: Start) -> None:
        """Send it."""

    def refuse(self, why: Exception) -> None:
        """Tell its client why not."""

    def stop(self, reason: RejectReason) -> None:
        """End it for a reason that its client is to be told."""

    def recall(self) -> None:
        """End an attempt whose answer has not begun; one that has goes on."""

    def settle(self) -> None:
        """Its books are closed."""
