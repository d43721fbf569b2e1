"""vLLM's dialect, which the other OpenAI-compatible engines share but for `priority`."""

from dataclasses import dataclass

from gateway.backends.base import Call


@dataclass(frozen=True, slots=True)
class OpenAiDialect:
    """Sends what the client said."""

    def body(self, call: Call, engine_priority: int) -> bytes:  # noqa: ARG002 - the engine has none
        """Return the body to send."""
        return call.body


@dataclass(frozen=True, slots=True)
class VllmDialect:
    """Sends a priority to engines that run `--scheduling-policy priority`.

    Older engines without that policy answer 400 to any priority, so it must be configured.
    """

    priority_scheduling: bool

    def body(self, call: Call, engine_priority: int) -> bytes:
        """Return the body to send."""
        if not self.priority_scheduling:
            return call.body
        # The body is a JSON object with members, none of them `priority`: put it before them
        # without touching another byte.
        opening, rest = call.body.split(b"{", 1)
        return b'%b{"priority":%d,%b' % (opening, engine_priority, rest)
