"""With `observe_progress`, what is put together from chunks is what real engines say whole."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.conftest import GatewayAt, entry
from tests.engines.fleet import Fleet
from tests.engines.tap import tapping
from tests.engines.test_bytes import Wire
from tests.engines.wire import CHAT, COMPLETIONS, Answer, ask

GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 12}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {}),
    "other scripts": (CHAT, {"content": "漢字 🙂 é"}),
    "two choices": (CHAT, {"n": 2, "temperature": 1.0}),
    "logprobs": (CHAT, {"logprobs": True, "top_logprobs": 3}),
    "a stop text": (CHAT, {"stop": ["a", "e"], "max_tokens": 50}),
    "not streamed in so many words": (CHAT, {"stream": False}),
    "completion": (COMPLETIONS, {}),
    "completion with logprobs": (COMPLETIONS, {"logprobs": 2}),
    "two prompts": (COMPLETIONS, {"prompt": ["to be", "or not"]}),
    "token ids": (COMPLETIONS, {"prompt": [5, 6, 7]}),
}
OF_ITS_OWN = re.compile(rb'"(?:id|created|timings|cached_tokens)": ?(?:"[^"]*"|[0-9]+|\{[^}]*\}),?')


@pytest.fixture(scope="module", params=["cpu", "llama"])
def wire(request: pytest.FixtureRequest, fleet: Fleet, gateway_at: GatewayAt) -> Iterator[Wire]:
    """A gateway that observes, in front of one engine."""
    name = str(request.param)
    with tapping(fleet[name].url) as (url, tap):
        gateway = gateway_at(
            [entry(name, url)],
            health={"interval_s": 3600},
            observe_progress=True,
            timeouts={"inter_token_s": 60},
        )
        yield Wire(gateway.url, fleet[name].recipe.model, tap)


def seen(wire: Wire, path: str, body: dict[str, Any]) -> tuple[Answer, bytes]:
    """Return the answer, and what the engine was asked: at last, if a connection was dead."""
    wire.tap.clear()
    answer = ask(wire.url, path, body)
    return answer, wire.tap.requests[-1].body


def asking(model: str, path: str, content: str = "To be, or", **more: Any) -> dict[str, Any]:
    """A call with a short answer."""
    body = {"model": model, **GREEDY, **more}
    if path == CHAT:
        return {**body, "messages": [{"role": "user", "content": content}]}
    return {"prompt": content, **body}


@pytest.mark.parametrize("name", CASES)
def test_it_is_byte_for_byte_what_the_engine_would_have_said(wire: Wire, name: str) -> None:
    path, more = CASES[name]
    if wire.model == "smollm2" and "logprobs" in more:
        pytest.skip("llama.cpp streams no logprobs for the token that ends an answer")
    body = asking(wire.model, path, **more)

    seen(wire, path, body)  # so that its form is known
    assembled, asked = seen(wire, path, body)
    assert b'"stream":true' in asked
    whole, asked = seen(wire, path, {**body, "echo": False, "unknown_to_the_gateway": 1})

    assert b'"stream":true' not in asked
    assert (assembled.status, whole.status) == (200, 200)
    assert assembled.headers["content-type"] == whole.headers["content-type"]
    assert OF_ITS_OWN.sub(b"", assembled.body) == OF_ITS_OWN.sub(b"", whole.body)
    assert assembled.json["usage"]["completion_tokens"] > 0
