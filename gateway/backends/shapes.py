"""Where the facts of an answer stand, by its shape, whole or streamed (pure)."""

from collections.abc import Mapping

from gateway.backends import engine_errors
from gateway.backends.base import BadAnswer, ConnectionBroken, EngineError, Shape, Usage
from gateway.backends.relay import (
    BROKEN_FINISHES,
    ChoicesRelay,
    StreamRelay,
    count,
    ended_early,
    read_usage,
)

Frame = dict[str, object]

_NATIVE_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}
_INCOMPLETE = "incomplete"


class ResponseRelay(StreamRelay):
    """Events of /v1/responses: the engine says with which one it ended, and no `[DONE]`."""

    def _passes(self, frame: Frame) -> bool:
        kind = frame.get("type")
        if kind == "error":
            self._fail(frame)
            return False
        response = frame.get("response")
        if isinstance(response, dict):
            self._read_response(response)
        elif isinstance(kind, str) and kind.endswith(".delta"):
            self._count_content()
        return True

    def _closed(self) -> None:
        if self.finish_reason is None:
            self.failure = ConnectionBroken("the engine ended the stream before the answer")
        else:
            self._end()

    def _read_response(self, response: Frame) -> None:
        made_id, usage = response.get("id"), response.get("usage")
        if isinstance(made_id, str):
            self.made_id = made_id
        if isinstance(usage, dict):
            self._read_usage(usage)
        self.finish_reason = _status_reason(response)
        if response.get("status") == "failed":
            self.failure = _failed(response)
            self.failure.is_told = True


class MessageRelay(StreamRelay):
    """Events of Anthropic's /v1/messages, `message_stop` the last."""

    def _passes(self, frame: Frame) -> bool:
        message = frame.get("message")
        holders = (frame, message if isinstance(message, dict) else {})
        for usage in (holder.get("usage") for holder in holders):
            if isinstance(usage, dict):
                self._read_usage(usage)
        match frame:
            case {"type": "error"}:
                self._fail(frame)
                return False
            case {"type": "content_block_delta"}:
                self._count_content()
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                self.finish_reason = "length" if reason == "max_tokens" else reason
            case {"type": "message_stop"}:
                self._end()
        return True

    def _closed(self) -> None:
        self.failure = ConnectionBroken("the engine ended the stream before the answer")


class RawRelay(StreamRelay):
    """No events at all, but bytes."""

    def feed(self, piece: bytes) -> bytes:
        """Pass the piece on."""
        self.data_events += 1
        return piece

    def finish(self) -> bytes:
        """The engine has sent all of it."""
        self._end()
        return b""


class GeneratedRelay(StreamRelay):
    """Tokens of TGI's /generate_stream: the last one brings the whole text."""

    def _passes(self, frame: Frame) -> bool:
        self._count_content()
        if isinstance(frame.get("generated_text"), str):
            usage, self.finish_reason = _generated(frame)
            self._told_tokens = usage.output_tokens
            self._prompt_tokens = usage.prompt_tokens
            self._end()
        return True

    def _closed(self) -> None:
        self.failure = ConnectionBroken("the engine ended the stream before the answer")


RELAYS: Mapping[Shape, type[StreamRelay]] = {
    Shape.CHOICES: ChoicesRelay,
    Shape.RESPONSE: ResponseRelay,
    Shape.MESSAGE: MessageRelay,
    Shape.GENERATED: GeneratedRelay,
    Shape.JSON: StreamRelay,
    Shape.ANY: StreamRelay,
}


def read_whole(shape: Shape, said: object) -> tuple[Usage, str | None]:
    """Return a whole answer's token counts and finish reason; BackendError if it is none."""
    said = _unlisted(shape, said)
    if not isinstance(said, dict):
        if shape in (Shape.JSON, Shape.ANY):
            return Usage(0), None
        raise BadAnswer("the engine's answer is not a JSON object")
    if said.get("error") is not None and shape is not Shape.ANY:
        status = engine_errors.status_of(said)
        kind = engine_errors.kind_of_status(status)
        raise EngineError(kind, status, engine_errors.error_of(said, status))
    counts = _usage(said)
    match shape:
        case Shape.CHOICES:
            return counts, _choices_reason(said)
        case Shape.RESPONSE:
            return counts, _status_reason(said)
        case Shape.MESSAGE:
            reason = said.get("stop_reason")
            return counts, "length" if reason == "max_tokens" else _text(reason)
        case Shape.GENERATED:
            if not isinstance(said.get("generated_text"), str):
                raise BadAnswer("the engine's answer has no text")
            return _generated(said)
        case Shape.JSON | Shape.ANY:
            return counts, None


def _unlisted(shape: Shape, said: object) -> object:
    """TGI's oldest address puts the text into a list."""
    if shape is Shape.GENERATED and isinstance(said, list) and len(said) == 1:
        return said[0]
    return said


def made_id(shape: Shape, said: object) -> str | None:
    """Return the id under which the engine keeps a whole answer."""
    if shape is not Shape.RESPONSE or not isinstance(said, dict):
        return None
    return _text(said.get("id"))


def _usage(said: Mapping[str, object]) -> Usage:
    usage = said.get("usage")
    return read_usage(usage) if isinstance(usage, dict) else Usage(0)


def _choices_reason(said: Mapping[str, object]) -> str | None:
    choices = said.get("choices")
    if not isinstance(choices, list):
        raise BadAnswer("the engine's answer has no choices")
    first = choices[0] if choices else None
    reason = _text(first.get("finish_reason")) if isinstance(first, Mapping) else None
    if reason in BROKEN_FINISHES:
        raise ended_early(str(reason))
    return reason


def _status_reason(response: Mapping[str, object]) -> str | None:
    status = response.get("status")
    if status == _INCOMPLETE:
        return "length"
    return "stop" if status in ("completed", "cancelled") else None


def _failed(response: Mapping[str, object]) -> EngineError:
    return EngineError(
        engine_errors.kind_of_status(500), 500, engine_errors.error_of(response, 500)
    )


def _generated(said: Mapping[str, object]) -> tuple[Usage, str | None]:
    details = said.get("details")
    if not isinstance(details, Mapping):
        return Usage(0), None
    output, prefill = details.get("generated_tokens"), details.get("prefill")
    prompt = details.get("input_length")
    if prompt is None and isinstance(prefill, list) and prefill:
        prompt = len(prefill)
    reason = _text(details.get("finish_reason"))
    usage = Usage(count(output) or 0, count(prompt))
    return usage, None if reason is None else _NATIVE_REASONS.get(reason, reason)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
