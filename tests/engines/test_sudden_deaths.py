"""An engine dies, hangs or is told to stop in mid-stream: one error event, and others go on.

Last by name, because engines are started anew between these tests.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from tests.engines.conftest import GatewayAt, Site, entry
from tests.engines.fleet import Running
from tests.engines.wire import CHAT, Connection, chat, eventually, is_idle, metric

EXPLAINED = {"x-hexsage-explain": "true"}
CANARY_S = 1.0
INTER_TOKEN_S = 3.0
"""The limit in `conftest.configuration`."""


class Interrupted(NamedTuple):
    """A stream through the gateway that has begun, and the engine that it comes from."""

    client: Connection
    engine: Running
    other: str
    """The replica's name that will have to do."""


@contextmanager
def a_stream(site: Site) -> Iterator[Interrupted]:
    """Begin an answer of a minute."""
    body = chat("paced", "Go on.", stream=True, max_tokens=2000, ignore_eos=True)
    with Connection(site.gateway.url, CHAT, body, EXPLAINED) as client:
        client.read_until(b'"content":"')
        replicas = ["paced-a", "paced-b"]
        replicas.remove(client.header("x-hexsage-backend"))
        engine = site.fleet[client.header("x-hexsage-backend")]
        yield Interrupted(client, engine, replicas[0])
    # What is left of it must not be taken for an engine.
    if not engine.says_ok():
        engine.end()


def assert_ends_with_one_error(client: Connection) -> None:
    """Read the stream to its end, which must be an error and nothing after it."""
    answer = client.read_to_end()
    assert answer.status == 200
    errors = [frame for frame in answer.frames if "error" in frame]
    assert errors == [answer.frames[-1]]
    assert set(errors[0]["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in answer.events


def assert_others_go_on(site: Site, other: str) -> None:
    """The gateway's books are empty, and the next calls are answered at once by the other."""
    eventually(lambda: is_idle(site.gateway.url), 1.0)
    began_at = time.perf_counter()
    with ExitStack() as calls:
        # More than one, so that an idle engine that is none would get its share.
        body = chat("paced", max_tokens=1)
        url = site.gateway.url
        canaries = [Connection(url, CHAT, body, EXPLAINED, timeout_s=5.0) for _ in range(3)]
        for canary in canaries:
            calls.enter_context(canary)
        answers = [canary.read_to_end() for canary in canaries]
    assert [answer.status for answer in answers] == [200] * 3
    assert {answer.headers["x-hexsage-backend"] for answer in answers} == {other}
    assert time.perf_counter() - began_at < CANARY_S
    eventually(lambda: is_idle(site.gateway.url), 1.0)


def failed(site: Site) -> float:
    """Return how many requests the gateway has counted as failed."""
    return metric(site.gateway.url, "hexsage_requests_total", outcome="failed")


def test_hanging(site: Site) -> None:
    with a_stream(site) as (client, engine, _), stopped(engine):
        began_at = time.perf_counter()

        assert_ends_with_one_error(client)

        assert time.perf_counter() - began_at < INTER_TOKEN_S + 1.0
        eventually(lambda: is_idle(site.gateway.url), 1.0)
        # Its /health says 200 all the while.
        assert engine.says_ok()
    eventually(lambda: metric(engine.url, "vllm:num_requests_running") == 0, 5.0)


def test_what_hangs_is_given_no_more_calls(site: Site, gateway_at: GatewayAt) -> None:
    replicas = [entry(name, site.fleet[name].url) for name in ("paced-a", "paced-b")]
    impatient = {"interval_s": 0.5, "timeout_s": 1.0, "stall_s": 2.0}
    assert impatient["stall_s"] < INTER_TOKEN_S
    site = Site(site.fleet, gateway_at(replicas, health=impatient))
    with a_stream(site) as (client, engine, other), stopped(engine):
        assert_ends_with_one_error(client)

        assert_others_go_on(site, other)


@contextmanager
def stopped(engine: Running) -> Iterator[None]:
    """Have an engine's core hang."""
    core = engine.core_pid()
    os.kill(core, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(core, signal.SIGCONT)


@pytest.mark.parametrize("whole", [False, True], ids=["its core", "all of it"])
def test_killed(site: Site, whole: bool) -> None:
    failed_before = failed(site)
    with a_stream(site) as (client, engine, other):
        if whole:
            os.killpg(engine.process.pid, signal.SIGKILL)
        else:
            os.kill(engine.core_pid(), signal.SIGKILL)

        assert_ends_with_one_error(client)

        assert_others_go_on(site, other)
        assert failed(site) == failed_before + 1


def test_told_to_stop(site: Site) -> None:
    with a_stream(site) as (client, engine, other):
        engine.process.terminate()

        assert_ends_with_one_error(client)

        assert_others_go_on(site, other)
