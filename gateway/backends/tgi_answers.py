"""AnswerMender: a TGI answer in the form that OpenAI's clients expect (pure)."""

from gateway.backends.dialect import Frame

REASONS = {"stop_sequence": "stop", "eos_token": "stop", "": None}


class AnswerMender:
    """Mends one answer, whole or frame by frame."""

    def __init__(self, answer_id: str, model: str, streams: int) -> None:
        self._id = answer_id
        self._model = model
        self._streams = streams
        """How many texts come in the stream: one for each prompt, each with usage of its own."""
        self._ended = 0
        self._usage: dict[str, int] = {}
        """Summed over the texts that have ended."""
        self._calls: set[int] = set()
        """Tool calls that have begun."""

    def whole(self, answer: Frame) -> None:
        """Change a whole answer in place."""
        self._sign(answer)
        for number, choice in enumerate(_dicts(answer.get("choices"))):
            message = choice.get("message")
            calls = _dicts(message.get("tool_calls")) if isinstance(message, dict) else []
            if calls and isinstance(message, dict):
                message.setdefault("content", None)
                for place, call in enumerate(calls):
                    call["id"] = self._call_id(number, place)
            _set_reason(choice, calls_tools=bool(calls))

    def frame(self, frame: Frame) -> list[Frame]:
        """Return the frame as it should be; usage, where it came beside a choice, in its own."""
        self._sign(frame)
        choices = _dicts(frame.get("choices"))
        for choice in choices:
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._mend_calls(_dicts(delta.get("tool_calls")))
            _set_reason(choice, calls_tools=bool(self._calls))
        usage = frame.get("usage")
        if not choices or not isinstance(usage, dict):
            return [frame]
        for name, value in usage.items():
            if isinstance(value, int):
                self._usage[name] = self._usage.get(name, 0) + value
        self._ended += 1
        del frame["usage"]
        if self._ended < self._streams:
            return [frame]
        return [frame, {**frame, "choices": [], "usage": self._usage}]

    def _sign(self, answer: Frame) -> None:
        answer["id"] = self._id
        answer["model"] = self._model

    def _call_id(self, choice: int, place: int) -> str:
        # TGI calls every call "0", in every turn; clients match results to calls by it.
        return f"call-{self._id}-{choice}-{place}"

    def _mend_calls(self, calls: list[Frame]) -> None:
        """Say id, type and name once: clients join the pieces of a call field by field."""
        for place, call in enumerate(calls):
            index = call.get("index")
            number = index if isinstance(index, int) else place
            if number not in self._calls:
                self._calls.add(number)
                call["id"] = self._call_id(0, number)
                continue
            call.pop("id", None)
            call.pop("type", None)
            function = call.get("function")
            if isinstance(function, dict) and function.get("name") is None:
                function.pop("name", None)


def _set_reason(choice: Frame, *, calls_tools: bool) -> None:
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        reason = REASONS.get(reason, reason)
        choice["finish_reason"] = "tool_calls" if reason == "stop" and calls_tools else reason


def _dicts(value: object) -> list[Frame]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
