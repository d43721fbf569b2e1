"""What nobody is told: keys, prompts, hosts; and what is not open at all."""

import asyncio
import json
import logging

import pytest

from gateway.api import errors
from gateway.api.errors import FAILURES, REFUSALS, ApiError
from gateway.backends.base import BackendError
from gateway.core.outcomes import FailureKind
from gateway.runtime.run import Refused
from tests.api.harness import a_gateway, chat, overhearing
from tests.backends.fake_backend import (
    Script,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    resets,
    streams,
)

pytestmark = pytest.mark.anyio
CANARIES = ("sk-canary-client", "sk-canary-engine", "canary-prompt", "canary-tool", "canary-cookie")
FAILING: list[Script] = [
    resets,
    answers(b"<h1>nginx</h1>", "502 No", "text/html"),
    answers(b"{", "200 OK"),
    answers(json.dumps({"error": {"message": "no"}}).encode(), "422 No"),
    streams(frame("a"), ends="reset"),
    after(60),
    plain,
]


async def test_no_log_page_or_error_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases 190 and 191: at the level of debugging too, where things go wrong above all."""
    monkeypatch.setenv("ENGINE_KEY", CANARIES[1])
    body = chat(
        "canary-prompt",
        tools=[{"type": "function", "function": {"name": "canary-tool"}}],
    )
    headers = {"authorization": f"Bearer {CANARIES[0]}", "cookie": "s=canary-cookie"}
    told = ""
    with overhearing() as ear:
        logging.getLogger().setLevel(logging.DEBUG)
        async with a_fake_backend(plain) as engine:
            engine.required_key = CANARIES[1]
            async with a_gateway(
                engine,
                backends=[{"api_key_env": "ENGINE_KEY"}],
                timeouts={"total_s": 0.3, "first_token_s": 0.3},
            ) as gw:
                for script in FAILING:
                    engine.script = script
                    for stream in (False, True):
                        path = f"/v1/chat/completions?api_key={CANARIES[0]}"
                        reply = await gw.post({**body, "stream": stream}, path, headers)
                        told += reply.body.decode()
                        told += str(reply.headers)
                        # Nor where the engine is.
                        assert str(engine.port) not in reply.body.decode()
                    await gw.post(b'{"canary-prompt', headers=headers)
                told += (await gw.request("GET", "/metrics")).body.decode()
                told += (await gw.request("GET", "/admin/state")).body.decode()
                port = str(engine.port)

    assert ear.text
    for canary in CANARIES:
        assert canary not in told
        assert canary not in ear.text
    assert port not in told.replace('"port"', "")


def test_no_error_of_ours_says_none_or_where() -> None:
    """Case 113."""
    told: list[ApiError] = [errors.INTERNAL, errors.bad_request("x")]
    told += [errors.refusal(Refused(reason)) for reason in REFUSALS]
    told += [errors.failure(BackendError(kind, "m", retryable=False)) for kind in FAILURES]
    assert set(FAILURES) == set(FailureKind)
    for error in told:
        inner = json.loads(error.body())["error"]
        assert set(inner) == {"message", "type", "param", "code"}
        assert isinstance(inner["message"], str)
        for text in (inner["message"], inner["code"], inner["param"]):
            assert text is None or not {"None", "nan", "<class"} & set(str(text).split())


async def test_a_browser_of_another_site_is_not_let_in() -> None:
    """Case 198: there is no CORS, so there is nothing to get wrong in it."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        asks = {"origin": "https://a", "access-control-request-method": "POST"}
        for path in ("/v1/chat/completions", "/v1/models"):
            preflight = await gw.request("OPTIONS", path, headers=asks)
            assert preflight.status == 405
            assert not any(name.lower().startswith("access-control") for name in preflight.headers)
        reply = await gw.post(chat(), headers={"origin": "https://a"})
        assert not any(name.lower().startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/chat/completions", "/", "/v1/responses"])
async def test_a_websocket_is_opened_nowhere(path: str) -> None:
    """Case 197."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        writer.write(
            b"GET %b HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            % path.encode()
        )
        async with asyncio.timeout(5):
            status = await reader.readline()
        writer.close()

        assert status.split()[1] in (b"404", b"405")
        assert engine.calls == []


HIDDEN = """
    /invocations /v2/x /load /server_info /sleep /wake_up /reset_prefix_cache /version /ping
    /v1/load_lora_adapter /v1/unload_lora_adapter /collective_rpc /abort_requests /inference/v1/x
    /scale_elastic_ep /start_profile /slots /props /flush_cache /v1/realtime
    /v1/images/generations
"""


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_engines_other_routes_are_not_there(method: str) -> None:
    """Cases 153 and 195."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for path in HIDDEN.split():
            reply = await gw.request(method, path, b"{}" if method == "POST" else None)
            assert (reply.status, reply.error["code"]) == (404, "not_found"), path
        assert engine.calls == []


async def test_odd_methods_and_heads_are_refused_in_our_words() -> None:
    """Case 117."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for method, path in [
            ("TRACE", "/"),
            ("PATCH", "/v1/embeddings"),
            ("GET", "/generate"),
            ("POST", "/info"),
            ("PUT", "/v1/responses/r"),
        ]:
            reply = await gw.request(method, path)
            assert reply.status in (404, 405)
            assert reply.error["type"] == "invalid_request_error"
        head = await gw.request("HEAD", "/v1/models")
        assert head.status in (200, 405)
        assert head.body == b""


@pytest.mark.parametrize(
    "request_head",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: +15\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n"
        b"\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nx : y\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_so_in_json_and_cut_off(request_head: bytes) -> None:
    """Case 108: and never a second, hidden request."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        writer.write(request_head)
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()

        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in head.lower()
        assert b"x-request-id: " in head.lower()
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert answer.count(b"HTTP/1.1") == 1
        assert engine.calls == []
