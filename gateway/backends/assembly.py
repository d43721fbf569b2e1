"""Assembly: a whole answer put together from the chunks of a streamed one (pure).

What belongs into a whole answer besides what chunks say, and in which order, differs from engine to
engine and from version to version. So it is not written down here: a Mould is taken from an answer
that the engine itself gave whole.
"""

from collections.abc import Mapping

Json = dict[str, object]

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
WITH_LOGPROBS = " logprobs"
_COMMON = (
    "model max_tokens temperature top_p top_k min_p seed stop stop_token_ids n presence_penalty "
    "frequency_penalty repetition_penalty length_penalty logit_bias logprobs user metadata "
    "priority stream min_tokens ignore_eos skip_special_tokens spaces_between_special_tokens "
    "include_stop_str_in_output guided_json guided_regex guided_choice guided_grammar "
    "structured_outputs response_format cache_salt vllm_xargs truncate_prompt_tokens service_tier "
    "safety_identifier prompt_cache_key"
)
_OF_CHAT = (
    "messages max_completion_tokens top_logprobs reasoning_effort "
    "chat_template_kwargs add_generation_prompt verbosity"
)
_FIELDS: Mapping[str, frozenset[str]] = {
    CHAT_PATH: frozenset(f"{_COMMON} {_OF_CHAT}".split()),
    COMPLETION_PATH: frozenset(f"{_COMMON} prompt".split()),
}
"""Fields of which it is known that they change the chunks and the whole answer alike.

Tools are not among them: of a call that is cut off vLLM 0.32 makes a call in chunks, a text whole.
"""
_OF_ENGINE = frozenset({"object", "role", "type", "system_fingerprint", "service_tier"})
"""What an engine says alike in each of its answers."""
_NOTHING: tuple[object, ...] = (None, "", [], {})


def form_of(path: str, body: Mapping[str, object]) -> str:
    """Return a name for the form that the whole answer to a body will have.

    It is "" where chunks may not hold all that the answer would. What is not known may be asked for
    only with null, false or []: echoes, beams, tools, prompts' logprobs, sound are the engine's.
    """
    known = _FIELDS.get(path)
    if known is None:
        return ""
    for name, value in body.items():
        if name not in known and value is not None and value is not False and value != []:
            return ""
    return path if body.get("logprobs") in (None, False) else path + WITH_LOGPROBS


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
        self.message = _form(first.get("message"))


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
        """Return the answer; ValueError if it cannot be known from the chunks."""
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
        message: Json = {**self._message, **{name: text for name, text in texts.items() if text}}
        if "content" not in message and mould.message.get("content") is ...:
            # The mould had a text. Without one it is null beside other things, else empty.
            message["content"] = None if any(texts.values()) else ""
        if not all(isinstance(member, str) for member in message.values() if member is not None):
            raise ValueError("a delta holds what is no text")
        said["message"] = _filled(mould.message, message)
        return _filled(mould.choice, said)

    def _add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if name != "role" and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif value not in _NOTHING:
                self._message[name] = value


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
