"""Requests that a client might send, good and bad, and where the gateway may answer otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.engines.wire import CHAT, COMPLETIONS

Body = dict[str, object]

GREEDY: Body = {"temperature": 0, "max_tokens": 4}
HELLO: list[Body] = [{"role": "user", "content": "Which statement ends a loop?"}]
LONG = "once more and " * 8000
"""Longer than any engine here can hold."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One request. `MODEL` in its body stands for the name of the model under test."""

    name: str
    body: Body | bytes | None
    path: str = CHAT
    method: str = "POST"
    headers: Mapping[str, str] | None = None
    differs: "Difference | None" = None


class Difference(NamedTuple):
    """The status that the gateway gives whatever the engine would say."""

    status: int
    why: str


NO_MODEL = Difference(404, "llama.cpp takes any name for its model; the gateway routes by it")


def _chat(
    name: str, *, without: str = "", differs: Difference | None = None, **fields: object
) -> Probe:
    body: Body = {"model": "MODEL", "messages": HELLO, **GREEDY, **fields}
    body.pop(without, None)
    return Probe(name=name, body=body, differs=differs)


def _text(name: str, *, without: str = "", **fields: object) -> Probe:
    body: Body = {"model": "MODEL", "prompt": "The break statement", **GREEDY, **fields}
    body.pop(without, None)
    return Probe(name=name, body=body, path=COMPLETIONS)


def _user(content: object) -> list[Body]:
    return [{"role": "user", "content": content}]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
USAGE = {"include_usage": True}

PROBES = (
    # what is in order
    _chat("chat"),
    _chat("chat, streamed", stream=True),
    _chat("chat, streamed with usage", stream=True, stream_options=USAGE),
    _chat("system and user", messages=[{"role": "system", "content": "Be brief."}, *HELLO]),
    _chat("content in parts", messages=_user([{"type": "text", "text": "Hello"}])),
    _chat("other scripts", messages=_user("Grüße, 你好, \u202e שלום 🙂")),
    _chat("max_completion_tokens", without="max_tokens", max_completion_tokens=3),
    _chat("two choices", n=2),
    _chat("two choices, streamed", n=2, stream=True),
    _chat("logprobs", logprobs=True, top_logprobs=1),
    _chat("a stop text", stop=["e"]),
    _chat("a stop text as string", stop="e"),
    _chat("a seed", temperature=1, seed=7),
    _chat("a user and metadata", user="someone", metadata={"purpose": "test"}),
    _chat("an unknown field", frobnicate=1),
    _chat("a null field", top_p=None),
    _chat("a priority", priority=5),
    _chat("response_format text", response_format={"type": "text"}),
    _text("completion"),
    _text("completion, streamed", stream=True),
    _text("completion, streamed with usage", stream=True, stream_options=USAGE),
    _text("a prompt of token ids", prompt=[500, 501, 502]),
    _text("two prompts", prompt=["One", "Two"]),
    _text("the prompt echoed", echo=True),
    _text("default length", without="max_tokens"),
    # what is not
    _chat("an unknown model", model="nope", differs=NO_MODEL),
    _chat("an unknown model, streamed", model="nope", stream=True, differs=NO_MODEL),
    Probe(
        name="no model",
        body={"messages": HELLO, **GREEDY},
        differs=Difference(400, "without a model there is nothing to route by"),
    ),
    Probe(name="broken JSON", body=b'{"model": "MODEL", "messages": ['),
    Probe(name="no body", body=b""),
    Probe(name="a list", body=b"[1, 2]"),
    Probe(name="not UTF-8", body=b'{"model": "MODEL", "messages": [{"role": "user\xff"}]}'),
    _chat("no messages", without="messages"),
    _chat("messages of the wrong type", messages="hello"),
    _chat("a temperature below zero", temperature=-1),
    _chat("a temperature in words", temperature="hot"),
    _chat("top_p zero", top_p=0),
    _chat("no tokens wanted", max_tokens=0),
    _chat("fewer than no tokens wanted", max_tokens=-1),
    _chat("more tokens than fit", max_tokens=1_000_000),
    _chat("no choices", n=0),
    _chat("too many logprobs", logprobs=True, top_logprobs=1000),
    _chat("a tool that cannot be called", tools=[TOOL], tool_choice="auto"),
    _chat("a picture", messages=_user([PICTURE])),
    _chat("a schema without a schema", response_format={"type": "json_schema"}),
    _chat(
        "stream in words",
        stream="yes",
        differs=Difference(400, "OpenAI refuses it; vLLM reads it as true"),
    ),
    _chat("stream_options without stream", stream_options=USAGE),
    _chat("a prompt too long", messages=_user(LONG)),
    _chat("a prompt too long, streamed", messages=_user(LONG), stream=True),
    _text("a prompt too long for a completion", prompt=LONG),
    _text("no prompt", without="prompt"),
    _text("token ids that do not exist", prompt=[99_999_999]),
    _text("a minimum above the maximum", min_tokens=9),
    Probe(name="GET", body=None, method="GET"),
    Probe(name="an unknown path", body=b"{}", path="/v1/nothing"),
)
