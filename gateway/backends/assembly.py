"""Assembly: a whole answer put together from the chunks of a streamed one (pure).

What belongs into a whole answer besides what chunks say, and in which order, differs from engine to
engine and from version to version. So it is not written down here: a Mould is taken from an answer
that the engine itself gave whole.
"""

from collections.abc import Mapping

Json = dict[str, object]

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
_COMMON = (
    "model max_tokens temperature top_p top_k min_p seed stop stop_token_ids n presence_penalty "
    "frequency_penalty repetition_penalty length_penalty logit_bias logprobs user metadata "
    "priority stream min_tokens ignore_eos skip_special_tokens spaces_between_special_tokens "
    "include_stop_str_in_output guided_json guided_regex guided_choice guided_grammar "
    "structured_outputs response_format cache_salt vllm_xargs truncate_prompt_tokens service_tier "
    "safety_identifier prompt_cache_key"
)
_OF_CHAT = (
    "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls "
    "reasoning_effort chat_template_kwargs add_generation_prompt verbosity"
)
_FIELDS: Mapping[str, frozenset[str]] = {
    CHAT_PATH: frozenset(f"{_COMMON} {_OF_CHAT}".split()),
    COMPLETION_PATH: frozenset(f"{_COMMON} prompt".split()),
}
"""Fields of which it is known that they change the chunks and the whole answer alike."""
_OF_ENGINE = frozenset({"object", "role", "type", "system_fingerprint", "service_tier"})
"""What an engine says alike in each of its answers."""
_NOTHING: tuple[object, ...] = (None, "", [], {})
_BEFORE_TOOL_CALLS = ("role", "content", "refusal", "annotations", "audio", "function_call")
"""What stands before the tool calls of a message whose mould has none."""


def form_of(path: str, body: Mapping[str, object]) -> str:
    """Return a name for the form that the whole answer to a body will have.

    It is "" where chunks may not hold all that the answer would. What is not known may be asked for
    only with null or false: echoes, beams, prompts' logprobs, sound are left to the engine.
    """
    known = _FIELDS.get(path)
    if known is None:
        return ""
    for name, value in body.items():
        if name not in known and value is not None and value is not False:
            return ""
    choice = body.get("tool_choice", "auto") if body.get("tools") else "none"
    tools = choice if choice in ("none", "auto", "required") else "named"
    return f"{path} {'logprobs ' if body.get('logprobs') else ''}{tools}"


class Mould:
    """The form of an engine's whole answers: which members, in which order. It holds no text."""

    def __init__(self, answer: Json) -> None:
        """Take it from an answer; ValueError from one without choices."""
        first = next(iter(_dicts(answer.get("choices"))), None)
        if first is None:
            raise ValueError("an answer without choices")
        self.answer = _form(answer)
        self.choice = _form(first)
        self.usage = _form(answer.get("usage"))
        self.message: Json | None = None
        self.tool_message: Json | None = None
        self.tool_call: Json = {"id": None, "type": None, "function": None}
        self._take_message(first.get("message"))

    def combined(self, older: "Mould | None") -> "Mould":
        """Return it with what only an older one knows: an answer has one kind of message."""
        if older is not None:
            self.message = self.message or older.message
            if self.tool_message is None:
                self.tool_message, self.tool_call = older.tool_message, older.tool_call
        return self

    def message_with(self, *, tools: bool) -> Json:
        """Return the form of a message."""
        if tools:
            return self.tool_message or _with_tool_calls(self.message or {})
        if self.message is None:
            return {**_without_tool_calls(self.tool_message or {}), "content": ""}
        return self.message

    def _take_message(self, message: object) -> None:
        if not isinstance(message, dict):
            return
        call = next(iter(_dicts(message.get("tool_calls"))), None)
        if call is None:
            self.message = _form(message)
        else:
            self.tool_message, self.tool_call = _form(message), _form(call)


class Assembly:
    """One answer on its way. Feed it every chunk, then ask for the whole."""

    def __init__(self) -> None:
        self._said: Json = {}
        self._usage: Json = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, chunk: Json) -> None:
        """Take in a chunk."""
        for name, value in chunk.items():
            if name == "usage":
                self._usage = value if isinstance(value, dict) else self._usage
            elif name != "choices" and value is not None:
                self._said[name] = value
        for choice in _dicts(chunk.get("choices")):
            index = choice.get("index")
            number = index if isinstance(index, int) else 0
            self._choices.setdefault(number, _Choice()).add(choice)

    def whole(self, mould: Mould) -> Json:
        """Return the answer; ValueError if choices are missing or have not ended."""
        choices = [choice for _, choice in sorted(self._choices.items())]
        if sorted(self._choices) != list(range(len(choices))) or not choices:
            raise ValueError("choices are missing")
        if not all(choice.has_ended for choice in choices):
            raise ValueError("a choice has not ended")
        said: Json = {**self._said, "object": mould.answer.get("object")}
        said["choices"] = [choice.whole(mould, number) for number, choice in enumerate(choices)]
        said["usage"] = _filled(mould.usage, self._usage)
        return _filled(mould.answer, said)

    def lacks(self, mould: Mould) -> bool:
        """Return whether the engine says more in whole answers than it has said in chunks."""
        said = {*self._said, "choices", "usage"}
        return any(value is ... and name not in said for name, value in mould.answer.items())


class _Choice:
    """One of the answers."""

    def __init__(self) -> None:
        self._said: Json = {}
        self._message: Json = {}
        self._texts: dict[str, list[str]] = {}
        self._logprobs: Json | None = None
        self._calls: dict[int, _ToolCall] = {}

    @property
    def has_ended(self) -> bool:
        """It says why it ended."""
        return self._said.get("finish_reason") is not None

    def add(self, choice: Json) -> None:
        """Take in a piece of it."""
        for name, value in choice.items():
            match name, value:
                case ("delta", dict()):
                    self._add_delta(value)
                case ("text", str()):
                    self._texts.setdefault("text", []).append(value)
                case ("logprobs", dict()):
                    self._logprobs = _joined(self._logprobs, value)
                case _:
                    if value is not None:
                        self._said[name] = value

    def whole(self, mould: Mould, index: int) -> Json:
        """Return it as it would have been whole."""
        said: Json = {**self._said, "index": index}
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._logprobs is not None:
            said["logprobs"] = self._logprobs
        if "message" not in mould.choice:
            return _filled(mould.choice, {**said, "text": texts.get("text", "")})
        calls = [call.whole(mould.tool_call) for _, call in sorted(self._calls.items())]
        form = mould.message_with(tools=bool(calls))
        message: Json = {**self._message, **{name: text for name, text in texts.items() if text}}
        if calls:
            message["tool_calls"] = calls
        if "content" not in message and form.get("content") is ...:
            # The mould had a text. Without one it is null beside other things, else empty.
            message["content"] = None if calls or any(texts.values()) else ""
        said["message"] = _filled(form, message)
        return _filled(mould.choice, said)

    def _add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for place, call in enumerate(_dicts(value)):
                    index = call.get("index")
                    number = index if isinstance(index, int) else place
                    self._calls.setdefault(number, _ToolCall()).add(call)
            elif name != "role" and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif value is not None:
                self._message[name] = value


class _ToolCall:
    """A call of a tool: named once, its arguments in pieces."""

    def __init__(self) -> None:
        self._said: Json = {}
        self._function: Json = {}
        self._arguments: list[str] = []

    def add(self, piece: Json) -> None:
        function = piece.get("function")
        if isinstance(function, dict):
            arguments = function.get("arguments")
            self._arguments += [arguments] if isinstance(arguments, str) else []
            self._function |= {k: v for k, v in function.items() if v is not None}
        self._said |= {k: v for k, v in piece.items() if v is not None and k != "index"}

    def whole(self, form: Json) -> Json:
        function = {**self._function, "arguments": "".join(self._arguments)}
        return _filled(form, {**self._said, "function": function})


def _form(value: object) -> Json:
    """Return an object's members, `...` for what may be different in each answer."""
    if not isinstance(value, dict):
        return {}
    return {
        name: member if name in _OF_ENGINE or member in _NOTHING else ...
        for name, member in value.items()
    }


def _filled(form: Json, said: Json) -> Json:
    """Return what was said in the order of the form, with the form's own where nothing was."""
    whole = {
        name: said.get(name, None if member is ... else member) for name, member in form.items()
    }
    return whole | {name: member for name, member in said.items() if name not in form}


def _with_tool_calls(message: Json) -> Json:
    before = {name: member for name, member in message.items() if name in _BEFORE_TOOL_CALLS}
    after = {name: member for name, member in message.items() if name not in before}
    return {**before, "content": None, "tool_calls": None, **after}


def _without_tool_calls(message: Json) -> Json:
    return {name: member for name, member in message.items() if name != "tool_calls"}


def _joined(first: Json | None, second: Json) -> Json:
    """Return two objects of lists as one."""
    if first is None:
        return {name: list(v) if isinstance(v, list) else v for name, v in second.items()}
    for name, value in second.items():
        known = first.get(name)
        if isinstance(known, list) and isinstance(value, list):
            known.extend(value)
        elif value is not None:
            first[name] = list(value) if isinstance(value, list) else value
    return first


def _dicts(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
