"""A client that leaves takes its work with it, out of a real engine, within a second."""

import pytest

from tests.engines.conftest import Site
from tests.engines.wire import CHAT, Connection, chat, eventually, is_idle, metric

RUNNING = {"cpu": "vllm:num_requests_running", "llama": "llamacpp:requests_processing"}
LIMIT_S = 1.0


def running(site: Site, engine: str) -> int:
    """Return how many calls the engine works on."""
    return int(metric(site.fleet[engine].url, RUNNING[engine]))


def a_long_call(site: Site, engine: str, *, stream: bool = True) -> Connection:
    """Ask for an answer that takes many seconds."""
    model = site.fleet[engine].recipe.model
    body = chat(model, "Go on and on.", stream=stream, max_tokens=1800, ignore_eos=True)
    return Connection(site.gateway.url, CHAT, body)


@pytest.mark.parametrize(
    ("engine", "stream"),
    [
        pytest.param("cpu", True, id="vLLM, streamed"),
        pytest.param("cpu", False, id="vLLM, whole"),
        pytest.param("llama", True, id="llama.cpp, streamed"),
        # Not whole: this llama.cpp does not look whether the reader of a whole answer is there.
    ],
)
def test_an_engine_stops_when_the_client_leaves(site: Site, engine: str, stream: bool) -> None:
    client = a_long_call(site, engine, stream=stream)
    if stream:
        client.read_until(b'"content":"')
    eventually(lambda: running(site, engine) == 1, 20.0)

    client.drop()

    eventually(lambda: running(site, engine) == 0, LIMIT_S)
    eventually(lambda: is_idle(site.gateway.url), LIMIT_S)


def test_a_prefill_stops_when_the_client_leaves(site: Site) -> None:
    replicas = [site.fleet[name].url for name in ("paced-a", "paced-b")]

    def running_prefills() -> float:
        return sum(metric(url, RUNNING["cpu"]) for url in replicas)

    # Several steps' worth: seconds, on this GPU.
    body = chat("paced", "All of this again. " * 1000, stream=True, max_tokens=10)
    client = Connection(site.gateway.url, CHAT, body)
    eventually(lambda: running_prefills() == 1, 20.0)
    assert not client.has_answer

    client.drop()

    eventually(lambda: running_prefills() == 0, LIMIT_S)
    eventually(lambda: is_idle(site.gateway.url), LIMIT_S)


def test_a_queued_call_is_forgotten_when_its_client_leaves(site: Site) -> None:
    with a_long_call(site, "cpu") as first, a_long_call(site, "cpu") as second:
        first.read_until(b'"content":"')
        second.read_until(b'"content":"')
        third = a_long_call(site, "cpu")
        eventually(lambda: metric(site.gateway.url, "hexsage_requests_queued") == 1, 5.0)

        third.drop()

        eventually(lambda: metric(site.gateway.url, "hexsage_requests_queued") == 0, LIMIT_S)
        assert running(site, "cpu") == 2
        assert metric(site.fleet["cpu"].url, "vllm:num_requests_waiting") == 0
    eventually(lambda: running(site, "cpu") == 0, LIMIT_S)
    eventually(lambda: is_idle(site.gateway.url), LIMIT_S)
