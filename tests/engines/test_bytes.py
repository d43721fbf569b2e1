"""Bodies pass through byte for byte, seen on the wire between the gateway and real engines."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.engines.conftest import GatewayAt, entry
from tests.engines.fleet import Fleet
from tests.engines.tap import Tap, tapping
from tests.engines.wire import CHAT, COMPLETIONS, Answer, ask, chat, eventually

USAGE = {"include_usage": True}
ALIAS = "a-public/name"


class Wire(NamedTuple):
    """A gateway, and what passes between it and an engine."""

    url: str
    model: str
    tap: Tap

    def ask(self, path: str, body: object) -> Answer:
        """Send one call, alone on the wire."""
        self.tap.clear()
        answer = ask(self.url, path, body)
        eventually(lambda: self.tap.answers[-1].is_whole, 5.0)
        assert [request.path for request in self.tap.requests] == [path]
        return answer


@pytest.fixture(scope="module", params=["cpu", "llama"])
def engine(request: pytest.FixtureRequest) -> str:
    """An engine's name."""
    return str(request.param)


@pytest.fixture(scope="module")
def wire(fleet: Fleet, gateway_at: GatewayAt, engine: str) -> Iterator[Wire]:
    """A gateway in front of one engine, that does not probe it while the tests last."""
    model = fleet[engine].recipe.model
    with tapping(fleet[engine].url) as (url, tap):
        gateway = gateway_at(
            [entry(engine, url)],
            health={"interval_s": 3600},
            models={ALIAS: {"target": model}},
        )
        yield Wire(gateway.url, model, tap)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_whole_answer_is_not_touched(wire: Wire, path: str) -> None:
    body = {**chat(wire.model, max_tokens=8), "prompt": "Grüße"}

    answer = wire.ask(path, body)

    assert answer.status == 200
    assert answer.body == wire.tap.answers[0].body


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_is_not_touched(wire: Wire, path: str) -> None:
    body = {**chat(wire.model, max_tokens=20), "prompt": "Grüße"}

    answer = wire.ask(path, {**body, "stream": True, "stream_options": USAGE})

    assert answer.status == 200
    assert answer.frames[-1]["usage"]
    assert answer.body == wire.tap.answers[0].body


def test_only_the_usage_that_nobody_asked_for_is_left_out(wire: Wire) -> None:
    answer = wire.ask(CHAT, chat(wire.model, max_tokens=8, stream=True))

    sent = wire.tap.answers[0].body.split(b"\n\n")
    assert answer.body.split(b"\n\n") == [
        event for event in sent if b'"choices":[]' not in event.replace(b" ", b"")
    ]
    assert len(sent) == len(answer.body.split(b"\n\n")) + 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_of_an_alias_only_the_name_differs(wire: Wire, stream: bool) -> None:
    body = chat(ALIAS, max_tokens=8, stream=stream)
    if stream:
        body["stream_options"] = USAGE

    answer = wire.ask(CHAT, body)

    served, public = (json.dumps(name).encode() for name in (wire.model, ALIAS))
    assert answer.body == wire.tap.answers[0].body.replace(served, public)
    assert public in answer.body


def test_a_clients_body_is_not_encoded_anew(wire: Wire, engine: str) -> None:
    odd = b"""{ "messages" : [{"content":"\\u0041 1e3\\/", "role":"user"}],
      "max_tokens":2, "model":"%b" }"""
    body = odd % wire.model.encode()

    assert wire.ask(CHAT, body).status == 200

    sent = wire.tap.requests[0].body
    if engine == "cpu":  # whose queue is told the call's rank, before the client's members
        start, _, rest = sent.partition(b",")
        assert start.startswith(b'{"priority":')
        sent = b"{" + rest
    assert sent == body


def test_an_engines_refusal_keeps_its_words(wire: Wire) -> None:
    answer = wire.ask(CHAT, chat(wire.model, "word " * 40_000, max_tokens=1))

    assert answer.status == 400
    told = json.loads(wire.tap.answers[0].body)["error"]
    assert answer.json["error"]["message"] == told["message"]
