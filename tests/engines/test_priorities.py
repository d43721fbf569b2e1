"""Who is more urgent comes first, in the gateway's queue and in the engine's."""

from contextlib import ExitStack

from tests.engines.conftest import GatewayAt, Site, entry
from tests.engines.wire import CHAT, Connection, chat, eventually, metric

SLOTS = 2
"""Calls that `cpu` runs at once, and that the gateway gives it by default."""


def a_long_call(url: str, headers: dict[str, str] | None = None, **fields: object) -> Connection:
    """Ask for an answer that holds its slot for many seconds."""
    body = chat("tiny", "Go on.", stream=True, max_tokens=2000, ignore_eos=True, **fields)
    return Connection(url, CHAT, body, headers)


def test_the_gateway_sends_the_urgent_call_first(site: Site) -> None:
    url = site.gateway.url
    with ExitStack() as calls:
        holders = [calls.enter_context(a_long_call(url)) for _ in range(SLOTS)]
        for holder in holders:
            holder.read_until(b'"content":"')
        later = calls.enter_context(a_long_call(url, priority=5))
        eventually(lambda: metric(url, "hexsage_requests_queued") == 1, 5.0)
        sooner = calls.enter_context(a_long_call(url, priority=-5))
        eventually(lambda: metric(url, "hexsage_requests_queued") == 2, 5.0)

        holders[0].drop()

        sooner.read_until(b'"content":"')
        assert not later.has_answer
        holders[1].drop()
        later.read_until(b'"content":"')


def test_the_engine_is_told_which_call_is_urgent(site: Site, gateway_at: GatewayAt) -> None:
    engine = site.fleet["cpu"].url
    url = gateway_at([entry("cpu", engine, max_in_flight=6)]).url
    with ExitStack() as calls:
        holders = [calls.enter_context(a_long_call(url)) for _ in range(SLOTS)]
        for holder in holders:
            holder.read_until(b'"content":"')
        later = calls.enter_context(a_long_call(url, {"x-request-deadline-ms": "300000"}))
        eventually(lambda: metric(engine, "vllm:num_requests_waiting") == 1, 5.0)
        sooner = calls.enter_context(a_long_call(url, {"x-request-deadline-ms": "100000"}))
        eventually(lambda: metric(engine, "vllm:num_requests_waiting") == 2, 5.0)

        holders[0].drop()

        sooner.read_until(b'"content":"')
        assert not later.has_answer
