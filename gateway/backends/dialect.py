"""What differs between the kinds of engines that speak OpenAI's API: one dialect a kind."""

from typing import Protocol

from gateway.backends.base import Call, EngineError

Frame = dict[str, object]


class Mender(Protocol):
    """Brings one answer of an engine into the form that clients expect. Only TGI's need it."""

    def whole(self, answer: Frame) -> None:
        """Change a whole answer in place."""

    def frame(self, frame: Frame) -> list[Frame]:
        """Return what a stream's frame becomes."""


class Dialect(Protocol):
    """One engine's way of speaking."""

    def prepare(self, call: Call, engine_priority: int) -> tuple[bytes, Mender | None]:
        """Return the body to send, and what mends the answer; without one its bytes pass as they
        are. EngineError if the engine would not do what is asked, but something else.
        """

    def tells_all(self, form: str) -> bool:
        """Whether a stream is known to say all that a whole answer of a form (see Call) does."""

    def explain(self, error: EngineError) -> EngineError:
        """Return what an engine's error means."""

    def adapts_to(self, error: EngineError) -> bool:
        """Whether, having heard this error, it will say the same thing in another way."""
