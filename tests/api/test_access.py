"""The access log: a line for every request, and nothing in it that is secret."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.api.access import AccessLog
from gateway.runtime.clock import MonotonicClock
from tests.api.harness import Running, built, chat, serving_app
from tests.backends.fake_backend import FakeBackend, a_fake_backend, plain

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def noted(engine: FakeBackend) -> AsyncIterator[Running]:
    """A gateway that tells of every request."""
    gateway = built(engine)
    app = AccessLog(gateway.app, MonotonicClock())
    async with serving_app(app) as port, aiohttp.ClientSession() as session:
        yield Running(gateway, (engine,), session, port)


def told(caplog: pytest.LogCaptureFixture) -> list[Mapping[str, object]]:
    """The fields of what was told."""
    records = [record for record in caplog.records if record.name == "gateway.api.access"]
    return [record.__dict__["fields"] for record in records]


async def test_a_call_is_told_with_what_became_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_fake_backend(plain) as engine, noted(engine) as gw:
        reply = await gw.post(
            chat("a prompt that nobody may read"),
            path="/v1/chat/completions?api_key=secret",
            headers={"authorization": "Bearer secret", "x-request-id": "mine-1"},
        )
        assert reply.status == 200

    (line,) = told(caplog)
    duration_ms = line["duration_ms"]
    assert isinstance(duration_ms, float)
    assert duration_ms > 0
    assert {**line, "duration_ms": 0} == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 0,
        "request_id": "mine-1",
        "tenant": "anonymous",
        "model": "m1",
        "backend": "e0",
        "input_tokens": line["input_tokens"],
        "output_tokens": line["output_tokens"],
    }
    assert line["output_tokens"]
    assert "secret" not in caplog.text
    assert "nobody may read" not in caplog.text


async def test_refusals_are_told_as_far_as_they_got(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_fake_backend(plain) as engine, noted(engine) as gw:
        await gw.post(b"no JSON")
        await gw.post({**chat(), "model": "n" * 1000})
        await gw.request("GET", "/v1/models")
        await gw.request("GET", "/" + "p" * 1000)

    bad, unknown, models, nowhere = told(caplog)
    assert (bad["status"], bad.get("model")) == (400, None)
    assert (unknown["status"], unknown["model"]) == (404, "n" * 200)
    assert "backend" not in unknown
    assert (models["status"], models["path"]) == (200, "/v1/models")
    assert (nowhere["status"], nowhere["path"]) == (404, "/" + "p" * 199)


async def test_what_machines_ask_all_day_is_told_at_debug_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_fake_backend(plain) as engine, noted(engine) as gw:
        with caplog.at_level(logging.INFO):
            await gw.request("GET", "/healthz")
        assert told(caplog) == []
        with caplog.at_level(logging.DEBUG):
            await gw.request("GET", "/healthz")
        (line,) = told(caplog)

    assert line["path"] == "/healthz"
