"""Settings: everything that can be set, and what follows from it."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.config.backends import BackendEntry, ModelEntry
from gateway.config.entry import Name, NotNegative
from gateway.config.scheduling import (
    HealthEntry,
    PolicyEntry,
    QueueEntry,
    RetriesEntry,
    SloEntry,
    TunerEntry,
    WorkflowEntry,
)
from gateway.config.serving import AdminEntry, ForeignPath, LimitsEntry, LogEntry, TelemetryEntry
from gateway.config.timeouts import ModelTimeoutsEntry, TimeoutsEntry
from gateway.config.tls import ServerTlsEntry
from gateway.core.specs import WorkflowSpec

ENV_PREFIX = "HEXSAGE_"


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    backends: tuple[BackendEntry, ...] = ()
    """The engines; at least one is needed."""
    models: dict[Name, ModelEntry] = Field(default_factory=dict)
    """Aliases, and what is special about a model."""
    policy: PolicyEntry = PolicyEntry()
    learn_profiles: bool = True
    """Correct each backend's profile by what its calls take."""
    tuner: TunerEntry = TunerEntry()
    slo: SloEntry = SloEntry()
    workflows: dict[Name, WorkflowEntry] = Field(default_factory=dict)
    """Workflows whose course is known beforehand; others are learned."""
    queue: QueueEntry = QueueEntry()
    timeouts: TimeoutsEntry = TimeoutsEntry()
    observe_progress: bool = False
    """Have engines stream to the gateway what clients do not (docs/benchmarks/observed.md)."""
    passthrough: tuple[ForeignPath, ...] = ()
    """Further paths of engines that clients may use as they are, each by its full name."""
    health: HealthEntry = HealthEntry()
    retries: RetriesEntry = RetriesEntry()
    limits: LimitsEntry = LimitsEntry()
    keys_file: Path | None = None
    """API keys and their limits (docs/operating.md); None: everybody is `anonymous`."""
    allow_anonymous: bool = False
    """Serve clients without a key beyond loopback."""
    tls: ServerTlsEntry | None = None
    admin: AdminEntry = AdminEntry()
    admin_key: SecretStr | None = None
    """Guards /admin; off loopback it is closed without."""
    state_dir: Path | None = None
    """What is learned is kept here over restarts; None: nowhere. One gateway a directory."""
    watch_s: NotNegative = 2.0
    """How often the files of configuration are looked at for changes; 0: never."""
    decision_log: Path | None = None
    """Append every decision to this file as JSON lines. It holds no prompts."""
    telemetry: TelemetryEntry = TelemetryEntry()
    drain_grace_s: NotNegative = 0.0
    """After SIGTERM: how long it still takes new calls, not being ready. What balancers need to
    notice; without one, nothing."""
    drain_timeout_s: NotNegative = 30.0
    """How long a stopping gateway waits for what runs."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0: a free one."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that accept and relay; with more than one, another one decides for all."""
    hang_s: NotNegative = 15.0
    """With several processes: one that gives no sign of life for so long is killed and replaced;
    0: never. One that begins has twenty times as long."""
    log: LogEntry = LogEntry()

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach the gateway."""
        return is_loopback(self.host)

    @property
    def is_admin_loopback(self) -> bool:
        """Only this machine can reach /admin."""
        return self.is_loopback if self.admin.port is None else is_loopback(self.admin.host)

    @property
    def aliases(self) -> dict[str, str]:
        """Public model names and what they stand for."""
        return {name: entry.target for name, entry in self.models.items() if entry.target}

    @property
    def model_timeouts(self) -> dict[str, dict[str, float]]:
        """Limits of an attempt by public model name; an alias has its target's, then its own."""
        return {name: self._timeouts_of(name).given for name in self.models}

    @property
    def queue_timeouts(self) -> dict[str, float]:
        """How long calls may wait, by public model name, where that is not as for all."""
        queue_s = {name: self._timeouts_of(name).queue_s for name in self.models}
        return {name: seconds for name, seconds in queue_s.items() if seconds is not None}

    def _timeouts_of(self, name: str) -> ModelTimeoutsEntry:
        entry = self.models[name]
        target = self.models.get(entry.target or name, entry)
        said = target.timeouts.model_dump() | entry.timeouts.model_dump(exclude_none=True)
        return ModelTimeoutsEntry(**said)

    @property
    def workflow_specs(self) -> dict[str, WorkflowSpec]:
        """The declared workflows by name."""
        return {name: entry.to_core(name) for name, entry in self.workflows.items()}


def is_loopback(host: str) -> bool:
    """Return whether an address to bind to is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
