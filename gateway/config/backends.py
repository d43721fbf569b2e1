"""Engines and models: where they are, what they do in a second, what they are called."""

import os
from dataclasses import replace
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.entry import ApiPath, Entry, Name, NotNegative, Positive
from gateway.config.timeouts import ModelTimeoutsEntry, OwnTimeoutsEntry
from gateway.config.tls import ClientTlsEntry
from gateway.core.profiles import GpuProfile, built_in, roofline
from gateway.core.types import Backend, BackendId

DEFAULT_GPU = "A100-80G"
"""What a backend is taken for when the file does not say: its speed is then only relative."""


class ProfileEntry(Entry):
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


class BackendEntry(Entry):
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


class ModelEntry(Entry):
    """What is special about a model, by its public name."""

    target: Name | None = None
    """The model that the name stands for; None: it is the model's own."""
    timeouts: ModelTimeoutsEntry = ModelTimeoutsEntry()

    @model_validator(mode="after")
    def _says_something(self) -> "ModelEntry":
        if self.target is None and self.timeouts == ModelTimeoutsEntry():
            raise ValueError("needs a target, or timeouts")
        return self


def _is_link_local(host: str) -> bool:
    try:
        return ip_address(host).is_link_local
    except ValueError:
        return False
