"""What an engine is asked, and what it tells: calls in, first and last tokens out."""

from typing import NamedTuple

from gateway.core.types import PromptSegment


class EngineCall(NamedTuple):
    """What an engine is asked to do, and how long the answer will turn out."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """The true length, at least 1."""
    prefix: tuple[PromptSegment, ...] = ()
    priority: int = 0
    """vLLM's meaning: lower is sooner. Counts only with priority scheduling."""
    reserved_tokens: int = 0
    """Output tokens for which it gets KV blocks at admission, as in TGI: a batch in which all do
    so never preempts. 0: blocks as they are needed, as in vLLM."""


class FirstTokenAt(NamedTuple):
    """A call's first token is there."""

    at: float
    call_id: str


class FinishedAt(NamedTuple):
    """A call's last token is there."""

    at: float
    call_id: str
    output_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache when it was first admitted."""
    preemptions: int
    started_at: float
    """When it was first admitted from the waiting queue."""


EngineEvent = FirstTokenAt | FinishedAt
