"""The seam between the gateway and an engine, and how engines fail.

    BackendError
    ├── ConnectFailed        no connection was made: the engine has seen nothing
    ├── ConnectionBroken     the connection ended before the answer did
    ├── TimedOut             no first token, no further token, or no end in time
    ├── BadAnswer            not HTTP, not JSON, not what was asked for
    └── EngineError          the engine itself answered with an error

Whoever raises one of these has closed the connection to the engine first, which is what makes an
engine stop working on the call.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from gateway.core.outcomes import FailureKind

Header = tuple[bytes, bytes]


class BackendError(Exception):
    """A call that a backend did not bring to its end."""

    def __init__(self, kind: FailureKind, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        """Another attempt may follow as long as no byte has reached the client."""
        self.is_told = False
        """The stream itself has told the client already."""


class ConnectFailed(BackendError):
    """No connection to the engine could be made."""

    def __init__(
        self, message: str = "no connection to the engine could be made", *, is_late: bool = False
    ) -> None:
        super().__init__(FailureKind.CONNECT, message, retryable=True)
        self.is_late = is_late
        """Nobody has refused it: the engine may be well, and the network or the gateway slow."""


class ConnectionBroken(BackendError):
    """The connection ended before the answer did."""

    def __init__(self, message: str = "the engine closed the connection early") -> None:
        super().__init__(FailureKind.RESET, message, retryable=True)


class TimedOut(BackendError):
    """The engine was too slow. Not tried elsewhere: the same work would only be slow again."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind, "the engine did not answer in time", retryable=False)


class BadAnswer(BackendError):
    """What came back is not an answer to what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureKind.BAD_ANSWER, message, retryable=True)


class EngineError(BackendError):
    """The engine answered with an error of its own, by status or inside a stream."""

    def __init__(
        self,
        kind: FailureKind,
        status: int,
        error: Mapping[str, object],
        headers: tuple[Header, ...] = (),
    ) -> None:
        retryable = kind is not FailureKind.INVALID_REQUEST
        super().__init__(kind, f"the engine answered {status}", retryable=retryable)
        self.status = status
        self.error = error
        """In OpenAI's shape: message, type, param, code; type and code in the engine's words."""
        self.headers = headers
        """Those of its headers that a client can use, such as Retry-After."""

    def meaning(self, kind: FailureKind, status: int, code: str | None = None) -> "EngineError":
        """Return it as what it is, where the engine's status does not tell."""
        return EngineError(kind, status, {**self.error, "code": code}, self.headers)


class Usage(NamedTuple):
    """Token counts of one answer: the engine's own where it told them."""

    output_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Listener(Protocol):
    """Is told the facts of a call as soon as they are known."""

    def first_token(self) -> None:
        """The answer has begun. Told of streams only."""

    def progressed(self, output_tokens: int) -> None:
        """The answer has passed an edge of the shared length buckets."""

    def finished(self, usage: Usage) -> None:
        """The answer is complete and in order; told once, never before a failure."""


class Shape(StrEnum):
    """What an answer looks like, and with it where its facts are read."""

    CHOICES = "choices"
    """Chat and text completions: `choices` and `usage`; streams end in `[DONE]`."""
    RESPONSE = "response"
    """OpenAI's /v1/responses: named events, the last one says how it ended."""
    MESSAGE = "message"
    """Anthropic's /v1/messages: named events, the last one is `message_stop`."""
    GENERATED = "generated"
    """TGI's /generate and /generate_stream."""
    JSON = "json"
    """Embeddings, scores, tokens: one JSON value, perhaps with `usage`."""
    ANY = "any"
    """Anything at all, passed as it comes."""


class Upload(Protocol):
    """A request body that is still coming from the client. It can be sent once."""

    @property
    def length(self) -> int | None:
        """Its length in bytes, where the client told."""

    @property
    def is_begun(self) -> bool:
        """Some of it has been sent: there is no second attempt."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The longest things that an engine may answer with, in bytes; more is a bad answer."""

    answer_bytes: int = 64 * 1024 * 1024
    error_bytes: int = 64 * 1024
    """What is longer of an error is cut off."""
    event_bytes: int = 16 * 1024 * 1024
    """Of one event of a stream. The largest tool call fits; a stream without line ends does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One API call in the form in which it goes upstream, the same for every attempt."""

    path: str
    """Such as `/v1/chat/completions`."""
    body: bytes
    """A JSON object; b"" with an upload, or where the method has none."""
    method: str = "POST"
    content_type: str = "application/json"
    shape: Shape = Shape.CHOICES
    upload: Upload | None = None
    """Sent instead of the body."""
    headers: tuple[tuple[str, str], ...] = ()
    """What of the client's headers may go upstream."""
    query: str = ""
    upstream_id: str = ""
    """Each attempt's `x-request-id` is this and the attempt's number."""
    stream: bool = False
    hide_usage: bool = False
    """The usage chunk was asked for by the gateway, not by the client."""
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """Limits of its model, by the names of `http_client.Timeouts`; they go before the backend's."""
    renamed: tuple[str, str] | None = None
    """The model's name at the engine and the client's alias for it, which answers must bear."""
    form: str = ""
    """What the whole answer will look like, where it may be put together from a stream's chunks."""

    def header(self, name: str) -> str:
        """Return what the client says in a header that goes upstream; empty: nothing."""
        return dict(self.headers).get(name, "") if self.headers else ""

    def below(self, traceparent: str) -> "Call":
        """Return it as a part of this span, in place of the client's own."""
        said = dict(self.headers)
        trace_id = traceparent[:35]
        if said.get("traceparent", "")[:35] != trace_id:
            said.pop("tracestate", None)  # it was said of another trace
        return replace(self, headers=tuple({**said, "traceparent": traceparent}.items()))


class Answer(Protocol):
    """An answer under way: its first event is known, so its status can be told."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> tuple[Header, ...]:
        """The engine's headers that may go to a client; no content-length."""

    @property
    def whole(self) -> bytes | None:
        """The body, if it is not a stream."""

    @property
    def ended(self) -> bool:
        """The stream is complete: `read` has nothing more."""

    @property
    def is_complete(self) -> bool:
        """The engine ended the answer in order."""

    @property
    def usage(self) -> Usage:
        """Token counts so far."""

    @property
    def finish_reason(self) -> str | None:
        """Why the engine ended it, where it has."""

    @property
    def made_id(self) -> str | None:
        """The id of what the engine keeps for later calls; only a /v1/responses answer has one."""

    async def read(self) -> bytes:
        """Return the next whole events of a stream, b"" at its end, or raise BackendError."""

    async def flow(self, write: Callable[[bytes], bool]) -> None:
        """Have whole events written the moment they come, while that is all there is to do.

        It returns when `write`, which must not wait, says that there is no room for more, and when
        the stream ends or fails: `read` has the rest, and says so. What `write` raises is raised.
        """

    async def aclose(self) -> None:
        """Give the connection back if the answer was read to its end, else close it."""


class BackendClient(Protocol):
    """Talks to one backend."""

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> Answer:
        """Send the call; return once the answer has begun, or raise BackendError.

        Cancelling it, or closing the answer, closes the connection to the engine.
        """

    async def close(self) -> None:
        """Close every connection."""
