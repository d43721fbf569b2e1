"""VllmDialect: vLLM from 0.6.3 on."""

from dataclasses import dataclass

from gateway.backends.base import Call, EngineError
from gateway.backends.dialect import Mender
from gateway.backends.openai import OpenAiDialect, with_priority

_NO_PRIORITIES = ("Priority scheduling is not enabled", "does not support priority")
"""How 0.6.3 and 0.8.5 refuse a priority; newer ones without the policy ignore it."""


@dataclass
class VllmDialect(OpenAiDialect):
    """Sends a priority, lower is sooner, to engines that run `--scheduling-policy priority`.

    If one turns out not to, it gets none any more.
    """

    def prepare(self, call: Call, engine_priority: int) -> tuple[bytes, Mender | None]:
        """Return the body to send."""
        if not self.priority_scheduling:
            return call.body, None
        return with_priority(call.body, engine_priority), None

    def tells_all(self, form: str) -> bool:  # noqa: ARG002 - checked with 0.32
        """Return True: chunks hold logprobs too."""
        return True

    def adapts_to(self, error: EngineError) -> bool:
        """Return whether it was for its priority that a call was refused; remember it."""
        if not self.priority_scheduling or error.status != 400:
            return False
        message = str(error.error.get("message"))
        if not any(text in message for text in _NO_PRIORITIES):
            return False
        self.priority_scheduling = False
        return True
