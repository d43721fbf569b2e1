"""How long an attempt at a backend may take: for all, for one backend, for one model."""

from gateway.config.entry import Entry, Positive


class TimeoutsEntry(Entry):
    """Limits of one attempt at a backend."""

    connect_s: Positive = 5.0
    """A TCP connection."""
    first_token_s: Positive = 120.0
    """From sending a call to the first event of its stream."""
    inter_token_s: Positive = 30.0
    """Between a stream's events."""
    total_s: Positive = 600.0
    """From sending a call to its end."""


class OwnTimeoutsEntry(Entry):
    """Limits of an attempt, in seconds, where they are other than `timeouts` says for all."""

    connect_s: Positive | None = None
    """As in `timeouts`; None: what holds there."""
    first_token_s: Positive | None = None
    """As in `timeouts`; None: what holds there."""
    inter_token_s: Positive | None = None
    """As in `timeouts`; None: what holds there."""
    total_s: Positive | None = None
    """As in `timeouts`; None: what holds there."""

    @property
    def given(self) -> dict[str, float]:
        """What is said here, by name."""
        return self.model_dump(exclude={"queue_s"}, exclude_none=True)


class ModelTimeoutsEntry(OwnTimeoutsEntry):
    """Limits of a model's calls."""

    queue_s: Positive | None = None
    """How long one may wait; None: `queue.timeout_s`."""
