"""Settings: the command line, HEXSAGE_* variables and backends.yaml, checked whole at start-up.

The order is command line, environment, file, default. Unknown keys are refused; every mistake is
named with its file and line, or its variable.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.config_file import Location, YamlFile, dotted
from gateway.core.admission import QueueLimits, Unreachable
from gateway.core.breaker import HealthRules
from gateway.core.policies import DEFAULT_POLICY, PolicySettings, policy_from_name
from gateway.core.policies.alpha_balanced import Score
from gateway.core.policies.base import Policy
from gateway.core.profiles import GpuProfile, built_in, roofline
from gateway.core.retries import RetryRules
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import Backend, BackendId
from gateway.mistakes import plainly

ENV_PREFIX = "HEXSAGE_"
MAX_JSON_DEPTH = 250
"""What is nested deeper could be read, but not be written anew where something has to change."""
DEFAULT_GPU = "A100-80G"
"""What a backend is taken for when the file does not say: its speed is then only relative."""

OWN_PATHS = (
    "/admin",
    "/dashboard",
    "/docs",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/redoc",
    "/v1/models",
    "/v1/workflows",
)
"""Never passed through: the gateway answers there, or means to."""

Name = Annotated[str, Field(min_length=1, max_length=128)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
ApiPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./{}-]*$", max_length=256)]


def _foreign(path: str) -> str:
    if "{" in path or path.startswith(OWN_PATHS):
        raise ValueError(f"'{path}' is the gateway's own, or no full path")
    return path


ForeignPath = Annotated[ApiPath, AfterValidator(_foreign)]


class ConfigError(Exception):
    """Everything that is wrong with the settings, one line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileEntry(_Strict):
    """The constants of an accelerator with a model, for one that is not built in."""

    prefill_tokens_per_s: Positive
    """How fast prompts are read."""
    decode_base_s: Positive
    """One decoding step of a small batch."""
    kv_tokens: Annotated[int, Field(gt=0)]
    """What the KV cache holds, in tokens; an engine's own word goes before it."""
    kv_read_s_per_token: NotNegative = 0.0
    """What a step takes longer for each token of the batch's contexts."""
    step_overhead_s: NotNegative = 0.002
    """What a step takes besides the GPU."""
    max_batched_tokens: Annotated[int, Field(gt=0)] = 2048
    """Tokens a step may schedule: vLLM's --max-num-batched-tokens."""
    max_num_seqs: Annotated[int, Field(gt=0)] = 256
    """Calls a step may have."""
    block_tokens: Annotated[int, Field(gt=0)] = 16
    """Tokens of one block of the KV cache."""

    def to_core(self, name: str) -> GpuProfile:
        """Return the profile as the scheduler knows it."""
        given = self.model_dump(exclude={"prefill_tokens_per_s"})
        return GpuProfile(name=name, prefill_s_per_token=1 / self.prefill_tokens_per_s, **given)


class ClientTlsEntry(_Strict):
    """How the gateway and a backend know each other; files in PEM."""

    ca_file: Path | None = None
    """Who may have signed the backend's certificate; None: whom the system trusts."""
    cert_file: Path | None = None
    """What the gateway shows of itself, with its key in the same file or in `key_file`."""
    key_file: Path | None = None
    """The key, where it is a file of its own."""


class ServerTlsEntry(_Strict):
    """The gateway's own certificate; files in PEM."""

    cert_file: Path
    """What clients are shown."""
    key_file: Path
    """Its key."""
    client_ca_file: Path | None = None
    """Clients must show a certificate that this authority has signed."""


class OwnTimeoutsEntry(_Strict):
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


class BackendEntry(_Strict):
    """One engine."""

    name: Name
    """Unique; it is a label in metrics."""
    url: str
    """http://host:port, or https://. What follows the port is kept, but for a `/v1` at the end."""
    kind: Literal["vllm", "tgi", "openai"] = "vllm"
    """Which API the engine speaks: vLLM, TGI, or OpenAI as llama.cpp and SGLang have it."""
    model: Name | None = None
    """None: discovered from /v1/models."""
    gpu: str | None = None
    """A built-in profile; None: as an A100-80G, so that its speed is only relative."""
    model_size_b: Positive | None = None
    """Parameters in billions, for which the profile is computed. None: `gpu`'s table entry."""
    weight_bits: Annotated[int, Field(gt=0)] | None = None
    """Of a parameter; None: 16."""
    gpus: Annotated[int, Field(gt=0)] = 1
    """GPUs that the engine splits the model over (tensor parallel)."""
    profile: ProfileEntry | None = None
    max_in_flight: Annotated[int, Field(gt=0)] | None = None
    """Calls it may have at once, besides what its KV cache allows; None: no such cap."""
    priority_scheduling: bool = False
    """It obeys a body's `priority`: vLLM's --scheduling-policy priority (lower is sooner); for
    kind openai SGLang's --enable-priority-scheduling (higher is sooner)."""
    adapters: tuple[Name, ...] = ()
    """LoRA adapters that a TGI engine was started with: it does not list them."""
    endpoints: tuple[ApiPath, ...] | None = None
    """Paths that it offers, such as /v1/embeddings; None: by its own list, else by its kind."""
    weight: NotNegative = 1.0
    """Its share of traffic under `round_robin`; other policies know better."""
    api_key_env: str | None = None
    """The environment variable that holds the key which is sent upstream."""
    tls: ClientTlsEntry = ClientTlsEntry()
    """For https:// URLs."""
    timeouts: OwnTimeoutsEntry = OwnTimeoutsEntry()

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be http://host:port or https://host:port")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must have no user, password, query or fragment")
        try:
            parts.port  # noqa: B018 - it is read here for its error
        except ValueError:
            raise ValueError("must have a port from 1 to 65535") from None
        if _is_link_local(parts.hostname):
            raise ValueError("must not be link-local: clouds answer there with credentials")
        return url

    @field_validator("gpu")
    @classmethod
    def _is_known(cls, gpu: str | None) -> str | None:
        if gpu is not None:
            roofline(gpu, 1)  # so small a model fits every GPU there is
        return gpu

    @model_validator(mode="after")
    def _has_a_profile(self) -> "BackendEntry":
        if self.model_size_b is None and (self.gpus > 1 or self.weight_bits is not None):
            raise ValueError(
                "gpus and weight_bits need model_size_b: without it there is one table"
            )
        try:
            _ = self.gpu_profile
        except KeyError as error:
            raise ValueError(f"{error.args[0]} (model_size_b)") from None
        return self

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, variable: str | None) -> str | None:
        if variable is not None and not os.environ.get(variable):
            raise ValueError(f"the environment variable {variable} is not set")
        return variable

    @property
    def api_key(self) -> str | None:
        """The key that is sent upstream."""
        return os.environ.get(self.api_key_env) if self.api_key_env else None

    @property
    def gpu_profile(self) -> GpuProfile:
        """What its accelerator does."""
        if self.profile is not None:
            return self.profile.to_core(self.gpu or self.name)
        return built_in(self.gpu or DEFAULT_GPU, self.model_size_b, self.weight_bits, self.gpus)

    def to_core(
        self,
        models: frozenset[str],
        kv_tokens: int | None = None,
        max_in_flight: int | None = None,
    ) -> Backend:
        """Return the backend as the scheduler knows it, with what was discovered of it."""
        profile = self.gpu_profile
        if kv_tokens is not None:
            profile = replace(profile, kv_tokens=kv_tokens)
        return Backend(
            id=BackendId(self.name),
            models=models,
            profile=profile,
            max_in_flight=self.max_in_flight or max_in_flight,
            priority_scheduling=self.priority_scheduling,
            weight=self.weight,
        )


class ModelEntry(_Strict):
    """What is special about a model, by its public name."""

    target: Name | None = None
    """The model that the name stands for; None: it is the model's own."""
    timeouts: ModelTimeoutsEntry = ModelTimeoutsEntry()

    @model_validator(mode="after")
    def _says_something(self) -> "ModelEntry":
        if self.target is None and self.timeouts == ModelTimeoutsEntry():
            raise ValueError("needs a target, or timeouts")
        return self


_KNOBS = PolicySettings()


class PolicyEntry(_Strict):
    """Which policy decides, and its knobs."""

    name: str = DEFAULT_POLICY
    """One of docs/policies.md, or `<dispatch>+<order>`."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = _KNOBS.alpha
    """Speed against queue: 1 is speed alone. None: the policy's own, 0.7 for hexsage."""
    score: Score = _KNOBS.score
    """Which form of HexGen-Flow's score `hexgen` uses."""
    beta: Positive = _KNOBS.beta
    """The scale of `score: paper`."""
    budget_share: Positive = _KNOBS.budget_share
    """Share of an engine's KV cache that may be promised at once."""
    hold: Annotated[float, Field(ge=1)] = _KNOBS.hold
    """A call waits if the best backend with room scores so many times worse than the best of
    all."""
    hold_idle: Annotated[float, Field(ge=1)] = _KNOBS.hold_idle
    """The same for a backend that is idle."""
    skip: Annotated[int, Field(ge=0)] = _KNOBS.skip
    """Calls behind one that waits that may pass it, at a time."""
    kappa: NotNegative = _KNOBS.kappa
    """How long a lone call's made-up deadline is, for each second that it takes from others."""

    @field_validator("name")
    @classmethod
    def _exists(cls, name: str) -> str:
        policy_from_name(name)
        return name

    @property
    def settings(self) -> PolicySettings:
        """The knobs as policies read them."""
        return PolicySettings(**self.model_dump(exclude={"name"}))

    def to_core(self) -> Policy:
        """Return the policy."""
        return policy_from_name(self.name, self.settings)


class SloEntry(_Strict):
    """What is promised where a client asks for nothing."""

    default_deadline_ms: Positive | None = 60_000
    """Of workflows without a deadline of their own, counted from their first call."""


class StageEntry(_Strict):
    """One stage of a declared workflow."""

    name: Name
    """As calls say it in `x-workflow-stage`."""
    depends_on: tuple[Name, ...] = ()
    """Stages that must be done before this one may run."""
    fan_out: Annotated[int, Field(ge=1)] = 1
    """Answers it takes before the stages that depend on it may run."""
    max_repeats: Annotated[int, Field(ge=1)] | None = None
    """How often it may come; None: that is not known."""

    def to_core(self) -> StageSpec:
        """Return the stage as the scheduler knows it."""
        return StageSpec(**self.model_dump())


class WorkflowEntry(_Strict):
    """One declared workflow."""

    deadline_ms: Positive | None = None
    """From its first call; None: `slo.default_deadline_ms`."""
    stages: tuple[StageEntry, ...] = ()
    """What it is made of, as far as that is known."""

    def to_core(self, name: str) -> WorkflowSpec:
        """Return the workflow as the scheduler knows it; ValueError if its stages make no sense."""
        deadline_s = None if self.deadline_ms is None else self.deadline_ms / 1000
        stages = tuple(stage.to_core() for stage in self.stages)
        return WorkflowSpec(name=name, stages=stages, deadline_s=deadline_s)


class QueueEntry(_Strict):
    """How much may wait, and how long."""

    max_requests: Annotated[int, Field(ge=0)] = 1000
    """Calls that may wait; with 0, what cannot start is refused."""
    max_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Bodies of calls that may wait, in memory."""
    max_predicted_s: Positive | None = None
    """Predicted work that may wait, in an average backend's seconds; None: any."""
    timeout_s: Positive = 120.0
    """How long a call may wait."""
    max_model_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each of these that one model's calls may fill."""
    max_backend_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of `max_requests` that may wait for one backend, where a policy binds at arrival."""
    max_tenant_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each of these that one tenant may fill."""
    on_unreachable_deadline: Unreachable = Unreachable.QUEUE
    """What becomes of a call that will hardly be in time: as any other, refused, or last."""

    def to_core(self) -> QueueLimits:
        """Return the limits as the scheduler knows them."""
        return QueueLimits(**self.model_dump(exclude_none=True))


class TimeoutsEntry(_Strict):
    """Limits of one attempt at a backend."""

    connect_s: Positive = 5.0
    """A TCP connection."""
    first_token_s: Positive = 120.0
    """From sending a call to the first event of its stream."""
    inter_token_s: Positive = 30.0
    """Between a stream's events."""
    total_s: Positive = 600.0
    """From sending a call to its end."""


Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class TunerEntry(_Strict):
    """Whether, and how, the policy's settings are tried anew on recent traffic."""

    enabled: bool = True
    """Whether settings are tried at all."""
    interval_s: Positive = 600.0
    """How often."""
    window_s: Positive = 3600.0
    """How far back the traffic it looks at may reach."""
    objective: Literal["p95", "attainment", "mean_ttlt"] = "p95"
    """What counts: the 95th percentile, the share in time, or the mean time to the last token."""


class HealthEntry(_Strict):
    """How often backends are looked at, and when one that fails its calls gets no more."""

    interval_s: Positive = 5.0
    """Between two looks."""
    timeout_s: Positive = 2.0
    """How long a look may take."""
    failures: Count = 5
    """So many failed calls in a row open the breaker."""
    error_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """So does this share of the last calls that ended, once there are half of `window`."""
    window: Annotated[int, Field(ge=2)] = 20
    """How many of the last calls count."""
    cooldown_s: Positive = 5.0
    """From the opening to the first trial; doubled each time."""
    max_cooldown_s: Positive = 120.0
    """No longer than this."""
    ramp_s: NotNegative = 8.0
    """How long it takes until a backend that is back has all of its budget."""
    max_ejected_share: Share = 0.5
    """No more of a model's backends that are up are kept out."""
    silence_s: Positive = 60.0
    """Where no call streams: silence of this length, and of `silence_factor` times what the oldest
    call should take, is suspect."""
    silence_factor: Positive = 4.0
    """So many times longer than it should take."""
    stall_s: Annotated[float, Field(ge=2)] = 5.0
    """Where calls stream: so long without a token, and `silence_factor` times what the next one
    should take, is suspect. Not less than 2: it is once a second that the scheduler hears how
    streams go on."""

    def to_core(self) -> HealthRules:
        """Return the rules as the scheduler knows them."""
        return HealthRules(**self.model_dump(exclude={"interval_s", "timeout_s"}))


class RetriesEntry(_Strict):
    """How often a call, and all calls together, may be tried again."""

    max_attempts: Count = 3
    """Attempts at one call, the first one included."""
    share: NotNegative = 0.2
    """Retries for each first attempt, in the long run."""
    burst: Annotated[int, Field(ge=0)] = 256
    """So many more at once: what a backend held when it died must find another place."""
    backoff_s: NotNegative = 0.05
    """Before a backend that failed the call is tried again; doubled each time."""
    max_backoff_s: NotNegative = 2.0
    """No longer than this."""

    def to_core(self) -> RetryRules:
        """Return the rules as the scheduler knows them."""
        return RetryRules(**self.model_dump())


class LimitsEntry(_Strict):
    """What clients may send and how slowly, and what engines may answer."""

    max_body_bytes: Count = 16 * 1024 * 1024
    """Of a JSON body."""
    max_upload_bytes: Count = 256 * 1024 * 1024
    """Forms with a file in them, which are passed on as they come."""
    max_header_bytes: Count = 64 * 1024
    """Of a request's line and headers together."""
    max_json_depth: Annotated[int, Field(gt=0, le=MAX_JSON_DEPTH)] = 128
    """Of a body: brackets in brackets."""
    max_connections: Count = 8192
    """Clients at once; fewer if file handles are few."""
    header_timeout_s: Positive = 20.0
    """From a request's first byte, or a connection's start, to the end of its headers."""
    body_timeout_s: Positive = 30.0
    """For a JSON body in all; for what is uploaded, and everything else, between its pieces."""
    slow_reader_s: Positive = 60.0
    """A client that takes nothing of its answer for so long has left."""
    keep_alive_s: Positive = 75.0
    """How long a connection may be idle; longer than clients keep theirs."""
    max_answer_bytes: Count = 64 * 1024 * 1024
    """Of an engine's whole answer."""
    max_error_bytes: Count = 64 * 1024
    """Of an engine's error; what is longer is cut off."""
    max_event_bytes: Count = 16 * 1024 * 1024
    """Of one event of an engine's stream, and so of one line."""


class AdminEntry(_Strict):
    """Where /admin, /metrics and the docs are served, if not with everything else."""

    host: str = "127.0.0.1"
    """Address to listen on, with a port of its own."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """None: the same as for everything else."""


class TelemetryEntry(_Strict):
    """Where traces go. Everything else about them is said by OpenTelemetry's OTEL_* variables."""

    endpoint: str | None = None
    """Base URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; None: what
    OTEL_EXPORTER_OTLP_ENDPOINT says, and nowhere if it says nothing."""

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("must be http://host:port or https://host:port")
        return url


class LogEntry(_Strict):
    """What is said on standard error."""

    format: Literal["text", "json"] = "text"
    """A line for people, or a JSON object in a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less than this is not said."""
    access: bool = False
    """A line for every request, at level info: method, path, status, duration, request id, tenant,
    model, backend, tokens. Never a prompt, a query or a header."""


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


def load_settings(path: Path | None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Return the settings, or raise ConfigError with every mistake there is."""
    document = YamlFile.read(path) if path is not None else YamlFile({}, {}, "")
    mistakes = [*document.mistakes, *_unknown_variables()]
    settings: Settings | None = None

    class Layered(Settings):
        """Settings that know the file too."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are no .env files
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - nor secret files
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Put the file below the environment."""
            return init_settings, env_settings, InitSettingsSource(settings_cls, document.content)

    try:
        settings = Layered.model_validate(overrides or {})
    except ValidationError as error:
        mistakes += [_told(item["loc"], plainly(item), document) for item in error.errors()]
    except SettingsError as error:
        mistakes.append(str(error))
    if settings is not None:
        mistakes += _contradictions(settings, document)
    if mistakes or settings is None:
        raise ConfigError(mistakes)
    return settings


def is_loopback(host: str) -> bool:
    """Return whether an address to bind to is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_link_local(host: str) -> bool:
    try:
        return ip_address(host).is_link_local
    except ValueError:
        return False


def _told(location: Location, message: str, document: YamlFile) -> str:
    """Return one mistake with the place where it was made."""
    variable = _variable(location)
    if variable is not None:
        return f"{variable}: {message}"
    line = document.line_of(location)
    place = f"{document.name}:{line}: " if line else ""
    return f"{place}{dotted(location)}: {message}"


def _variable(location: Location) -> str | None:
    """Return the environment variable that set a value, if one did."""
    name = ENV_PREFIX + "__".join(str(part) for part in location).upper()
    present = {variable.upper() for variable in os.environ}
    return name if name in present else None


def _unknown_variables() -> list[str]:
    known = set(Settings.model_fields)
    return [
        f"{variable}: is no setting that HexSage knows"
        for variable in sorted(os.environ)
        if variable.upper().startswith(ENV_PREFIX)
        and variable[len(ENV_PREFIX) :].lower().partition("__")[0] not in known
    ]


def _contradictions(settings: Settings, document: YamlFile) -> list[str]:
    """Return what is wrong between settings that are each fine."""
    wrong = [*_given_twice(settings.backends)]
    aliases = settings.aliases
    for name, target in aliases.items():
        if target in aliases:
            wrong.append((("models", name, "target"), f"'{target}' is itself an alias"))
    for name, entry in settings.workflows.items():
        try:
            entry.to_core(name)
        except ValueError as error:
            wrong.append((("workflows", name), str(error)))
    if not (settings.is_loopback or settings.allow_anonymous or settings.keys_file):
        message = (
            f"{settings.host} is reachable from outside: set keys_file, or allow_anonymous to "
            "serve anybody"
        )
        wrong.append((("host",), message))
    return [_told(location, message, document) for location, message in wrong]


def _given_twice(backends: Sequence[BackendEntry]) -> Iterator[tuple[Location, str]]:
    """Tell of names and of engines that are there more than once.

    A server of several models, or with a limit for each key, may be several backends.
    """
    names: set[str] = set()
    engines: dict[tuple[str | None, ...], str] = {}
    for index, backend in enumerate(backends):
        url = backend.url.rstrip("/").removesuffix("/v1")
        first = engines.setdefault((url, backend.model, backend.api_key_env), backend.name)
        if backend.name in names:
            yield ("backends", index, "name"), f"'{backend.name}' is used twice"
        elif first != backend.name:
            message = f"'{backend.name}' and '{first}' are one engine: its memory would count twice"
            yield ("backends", index, "url"), message
        names.add(backend.name)
