"""OpenAiDialect: engines that take OpenAI's API as it is, such as llama.cpp and SGLang."""

from dataclasses import dataclass

from gateway.backends.assembly import WITH_LOGPROBS
from gateway.backends.base import Call, EngineError
from gateway.backends.dialect import Mender
from gateway.core.outcomes import FailureKind

TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit."""
_TOO_LONG = ("maximum context length", "maximum model length", "model's context length")
"""How vLLM (two ways) and SGLang say so; llama.cpp has a type of error for it."""


@dataclass
class OpenAiDialect:
    """Sends what the client said, and a priority to engines that were declared to obey it.

    Of those only SGLang (--enable-priority-scheduling) is not vLLM, and there higher is sooner.
    """

    priority_scheduling: bool = False

    def prepare(self, call: Call, engine_priority: int) -> tuple[bytes, Mender | None]:
        """Return the body to send."""
        if not self.priority_scheduling:
            return call.body, None
        return with_priority(call.body, -engine_priority), None

    def tells_all(self, form: str) -> bool:
        """Return False for logprobs: llama.cpp streams none for the token that ends an answer."""
        return not form.endswith(WITH_LOGPROBS)

    def explain(self, error: EngineError) -> EngineError:
        """Return the error, with OpenAI's name for what each engine calls otherwise."""
        message = str(error.error.get("message")).lower()
        is_too_long = error.error.get("type") == "exceed_context_size_error" or any(
            text in message for text in _TOO_LONG
        )
        if is_too_long and error.kind is FailureKind.INVALID_REQUEST:
            return error.meaning(error.kind, error.status, TOO_LONG)
        return error

    def adapts_to(self, error: EngineError) -> bool:  # noqa: ARG002 - nothing to adapt
        """Return False: there is only one way to say it."""
        return False


def with_priority(body: bytes, priority: int) -> bytes:
    """Put a priority before the members of a JSON object, without touching another byte.

    There are members, and none is `priority`: a client's own never goes upstream.
    """
    opening, rest = body.split(b"{", 1)
    return b'%b{"priority":%d,%b' % (opening, priority, rest)
