"""EngineOptions: one emulated engine, as started."""

from dataclasses import dataclass

from gateway.core.profiles import GpuProfile

LONGEST_CONTEXT_TOKENS = 131_072
"""Llama 3.1's."""
TGI_CONCURRENT_REQUESTS = 128
"""TGI's --max-concurrent-requests by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What `hexsage emulate` was told of one engine; names are vLLM's where it has such a flag."""

    name: str
    profile: GpuProfile
    models: tuple[str, ...]
    """Names it answers to; it says the first of itself."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    kind: str = "vllm"
    speed: float = 1.0
    """Engine seconds in a second on the wall."""
    seed: int = 0
    priority_scheduling: bool = False
    prefix_caching: bool = True
    max_model_len: int | None = None
    """None: Llama 3.1's, or what the KV cache holds if that is less."""
    max_num_queued_reqs: int | None = None
    """None: as the engine's default, unbounded for vLLM and 128 for TGI."""
    api_key: str | None = None
    min_chunk_s: float = 0.005
    """Wall seconds between two writes to one stream, at least."""
    auto_tool_choice: bool = True
    request_id_headers: bool = False
    allow_faults: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("an engine needs a model name")
        if self.speed <= 0:
            raise ValueError(f"speed must be > 0, not {self.speed}")
        if self.min_chunk_s < 0:
            raise ValueError(f"min_chunk_s must be >= 0, not {self.min_chunk_s}")
        if self.max_num_queued_reqs is not None and self.max_num_queued_reqs < 1:
            raise ValueError("max_num_queued_reqs must be at least 1")
        if not 1 < self.context_tokens <= self.kv_capacity_tokens:
            raise ValueError(
                f"max_model_len {self.context_tokens} does not fit a KV cache of "
                f"{self.kv_capacity_tokens} tokens"
            )

    @property
    def max_calls(self) -> int | None:
        """Calls in the engine at most, running ones included; None: no limit."""
        if self.max_num_queued_reqs is None and self.kind == "tgi":
            return TGI_CONCURRENT_REQUESTS
        return self.max_num_queued_reqs

    @property
    def kv_capacity_tokens(self) -> int:
        """KV cache in whole blocks."""
        profile = self.profile
        return profile.kv_tokens // profile.block_tokens * profile.block_tokens

    @property
    def context_tokens(self) -> int:
        """Prompt and answer together, at most."""
        return self.max_model_len or min(LONGEST_CONTEXT_TOKENS, self.kv_capacity_tokens)
