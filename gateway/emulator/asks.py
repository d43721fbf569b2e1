"""What passes between a dialect and the engine: an Ask, or a Refusal; then Progress."""

from dataclasses import dataclass

from gateway.core.types import PromptSegment


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer to a request that generates nothing."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Refusal(Exception):
    """The request is answered at once, and not with what it asked for."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status}")
        self.reply = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to generate."""

    index: int
    prompt_tokens: int
    prefix: tuple[PromptSegment, ...]
    output_tokens: int
    finish_reason: str
    """stop, or length where the client's limit ends it; stop_sequence in TGI."""
    text_offset: int
    """Where in the endless answer its words begin."""
    reserved_tokens: int = 0
    """Output tokens for which it gets room before it begins."""


@dataclass(frozen=True, slots=True)
class Native:
    """How an answer in TGI's own form, rather than OpenAI's, is wanted."""

    details: bool
    text_before: str
    """The prompt, where the full text is wanted back."""
    in_list: bool
    """The compatible form of `/`: the answer is the one member of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that the engine takes."""

    id: str
    """As the answer will carry it."""
    is_chat: bool
    model: str
    """As the answer will name it."""
    created: int
    """Seconds since 1970."""
    prompt_tokens: int
    """Of all prompts, each counted once however many choices it has."""
    choices: tuple[Choice, ...]
    max_tokens: int
    priority: int = 0
    is_stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    before: str = ""
    after: str = ""
    """What an answer begins and, unless it is cut off, ends with: the frame of a JSON object."""
    tool: str | None = None
    """The function that the answer calls."""
    is_tool_required: bool = False
    """`tool_choice: required`: the finish reason says so."""
    native: Native | None = None
    """None: OpenAI's form."""
    is_response: bool = False
    """The answer is one of /v1/responses."""


@dataclass(slots=True)
class Progress:
    """How far one choice has come."""

    tokens: int = 0
    told: int = 0
    """Of those, already sent to a streaming client."""
    cached_tokens: int = 0
    finish_reason: str | None = None
    """None: it goes on."""
    events: int = 0
    """Events sent to a streaming client, where they are numbered."""
    is_closed: bool = False
    """A streaming client has been told that it is finished."""
    queue_s: float = 0.0
    inference_s: float = 0.0
    """Engine seconds before and after its admission, once it is finished."""
