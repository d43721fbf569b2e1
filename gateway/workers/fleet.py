"""Fleet: what workers know of backends, models and keys. Every change is told to all of them."""

from pydantic import BaseModel, ConfigDict

from gateway.config.backends import BackendEntry
from gateway.config.timeouts import TimeoutsEntry
from gateway.keys_file import KeyEntry


class Fleet(BaseModel):
    """Everything that a worker needs to read calls and to send them. It holds no secret key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backends: tuple[BackendEntry, ...] = ()
    timeouts: TimeoutsEntry = TimeoutsEntry()
    models: dict[str, tuple[str, ...]] = {}
    """What each backend serves, without adapters and aliases."""
    offers: dict[str, tuple[str, ...]] = {}
    """The backends that offer each path."""
    aliases: dict[str, str] = {}
    model_timeouts: dict[str, dict[str, float]] = {}
    queue_timeouts: dict[str, float] = {}
    keys: tuple[KeyEntry, ...] = ()
