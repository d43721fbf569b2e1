"""A parsed request body -> stage keys and the text worth embedding (pure)."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gateway.predictor.query import PromptQuery

OPENING_CHARS = 256
SHORT_CHARS = 64
"""A last user message shorter than this says little: the one before is added."""
NO_STAGE = "-"
MAX_TEXT_CHARS = 65_536
Json = object


def query_of(
    body: Mapping[str, Json],
    *,
    model: str,
    prompt_tokens: int,
    stage: str | None = None,
    hint_tokens: int | None = None,
) -> PromptQuery:
    """Read a chat or completion body. `stage` is the client's own name for the kind of call."""
    return PromptQuery(
        model=model,
        prompt_tokens=max(prompt_tokens, 0),
        stages=stage_keys(body, stage),
        text=text_of(body),
        max_tokens=_positive(body.get("max_completion_tokens"))
        or _positive(body.get("max_tokens")),
        n=max(_positive(body.get("n")) or 1, _positive(body.get("best_of")) or 1),
        hint_tokens=hint_tokens if hint_tokens is not None and hint_tokens > 0 else None,
    )


def stage_keys(body: Mapping[str, Json], stage: str | None = None) -> tuple[str, ...]:
    """Return the keys of a call's stage, most specific first.

    Derived keys may turn out to be unique (a system message with the date in it), so a wider one
    follows each; the caller takes the first that it has seen often enough.
    """
    modes = _modes(body)
    if stage:
        return (stage + modes,)
    messages = _messages(body)
    system = "\n".join(_content(m) for m in messages if m.get("role") in ("system", "developer"))
    tools = ",".join(_tool_names(body))
    opening = system or _first_user_text(body, messages)
    keys = []
    if system or tools:
        keys.append("h" + _hash(system, tools) + modes)
    if opening:
        keys.append("o" + _hash(opening[:OPENING_CHARS]) + modes)
    return (*keys, NO_STAGE + modes)


def text_of(body: Mapping[str, Json]) -> str:
    """Return the text by which prompts are compared: the last user message, or thereabouts."""
    messages = _messages(body)
    if not messages:
        return _prompt(body.get("prompt"))
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    text = _content(messages[users[-1]]) if users else ""
    if len(text) < SHORT_CHARS and len(users) > 1:
        text = f"{_content(messages[users[-2]])}\n{text}"
    if not users or users[-1] != len(messages) - 1:
        # A tool's result or a prefilled answer: what tells this turn from the one before.
        text = f"{text}\n{_content(messages[-1])}"
    return text


def bounded(text: str) -> str:
    """Return as much of a text as is compared: both its ends."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return text[: MAX_TEXT_CHARS // 2] + text[-MAX_TEXT_CHARS // 2 :]


def _modes(body: Mapping[str, Json]) -> str:
    modes = ""
    if body.get("tools") or body.get("functions"):
        modes += "+tools"
    shape = body.get("response_format")
    if isinstance(shape, Mapping) and str(shape.get("type", "")).startswith("json"):
        modes += "+json"
    template = body.get("chat_template_kwargs")
    thinks = isinstance(template, Mapping) and template.get("enable_thinking")
    if body.get("reasoning_effort") or body.get("reasoning") or thinks:
        modes += "+reasoning"
    messages = _messages(body)
    if messages and messages[-1].get("role") in ("tool", "function"):
        modes += "+result"
    return modes


def _messages(body: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, Mapping)]


def _content(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def _prompt(prompt: Json) -> str:
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else ""


def _first_user_text(body: Mapping[str, Json], messages: Sequence[Mapping[str, Json]]) -> str:
    if not messages:
        return _prompt(body.get("prompt"))
    return next((_content(m) for m in messages if m.get("role") == "user"), "")


def _tool_names(body: Mapping[str, Json]) -> list[str]:
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    functions = (tool.get("function") for tool in tools if isinstance(tool, Mapping))
    return sorted(str(f.get("name")) for f in functions if isinstance(f, Mapping))


def _positive(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _hash(*parts: str) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
