"""An engine that is full says 503, or in a burst 200 and an error event; a client only sees 503.

vLLM looks at its limit before it begins a stream, and again when the call enters the engine: calls
that come together pass the first look and fail at the second, after status 200.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.engines.conftest import AUTHORIZED, GatewayAt, Site, entry
from tests.engines.wire import CHAT, Answer, Connection, ask, chat, eventually, metric

LIMITS = {"cpu": 6, "paced-a": 12}
"""How many calls the engine holds, running ones included; as `conftest.recipes` starts it."""
BURST = 24


@contextmanager
def full(site: Site, name: str) -> Iterator[str]:
    """Keep an engine full, past the gateway; yield the engine's URL."""
    engine = site.fleet[name]
    # Half a minute at least before one of them ends.
    body = chat(engine.recipe.model, stream=True, max_tokens=4000, ignore_eos=True)
    with ExitStack() as calls:
        for _ in range(LIMITS[name]):
            calls.enter_context(Connection(engine.url, CHAT, body, AUTHORIZED))
        held = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        eventually(lambda: sum(metric(engine.url, n) for n in held) == LIMITS[name], 20.0)
        yield engine.url
    eventually(lambda: not sum(metric(engine.url, n) for n in held), 5.0)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_full_engine_is_a_503_that_may_be_retried(site: Site, stream: bool) -> None:
    body = chat("tiny", max_tokens=4, stream=stream)
    with full(site, "cpu") as url:
        assert ask(url, CHAT, body, headers=AUTHORIZED).status == 503

        through = ask(site.gateway.url, CHAT, body)

    assert through.status == 503
    assert not through.is_stream
    assert "busy" in through.json["error"]["message"]
    assert int(through.headers["retry-after"]) >= 1
    assert through.headers["x-should-retry"] == "true"


def test_a_refusal_in_a_burst_is_a_503_too(site: Site, gateway_at: GatewayAt) -> None:
    engine = site.fleet["cpu"].url
    gateway = gateway_at([entry("cpu", engine, max_in_flight=BURST)]).url
    direct = [a_burst(engine) for _ in range(3)]
    assert any(answer.status != answer.effective_status for burst in direct for answer in burst)

    for answer in (answer for _ in range(3) for answer in a_burst(gateway)):
        if answer.status == 200:
            assert answer.is_stream
            assert "error" not in answer.body.decode()
            assert answer.events[-1] == "[DONE]"
        else:
            assert answer.status == 503
            assert "busy" in answer.json["error"]["message"]


def a_burst(url: str) -> list[Answer]:
    """Send many short calls in the same instant."""
    body = chat("tiny", stream=True, max_tokens=4, ignore_eos=True)
    calls = [Connection(url, CHAT, body, AUTHORIZED) for _ in range(BURST)]
    answers = [call.read_to_end() for call in calls]
    for call in calls:
        call.drop()
    return answers


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_call_that_a_full_engine_refuses_moves_to_the_other_replica(
    site: Site, stream: bool
) -> None:
    explained = {"x-hexsage-explain": "true"}
    with full(site, "paced-a"):
        answers = [
            ask(
                site.gateway.url,
                CHAT,
                chat("paced", f"Question {number}", max_tokens=2, stream=stream),
                headers=explained,
            )
            for number in range(4)
        ]

    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.headers["x-hexsage-backend"] for answer in answers} == {"paced-b"}
    assert max(int(answer.headers["x-hexsage-attempt"]) for answer in answers) == 2
