"""Variants of the wire cases that are not their own examples: same kinds, other inputs."""

import json
from typing import Any

import pytest

from tests.api.harness import Reply, Running, a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    STREAM,
    WHOLE,
    Exchange,
    a_fake_backend,
    answers,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio
ERROR = {"message": "boom", "type": "InternalServerError", "code": 500}
ODD = "a\u2028b\u2029c\x85d\x0be\x1cf\x00g\rh\ndata: [DONE]\n\n"
"""What some take for the end of a line, and what is one."""


def only_error(reply: Reply) -> dict[str, Any]:
    """The error that a stream ends in: one event, one line, nothing after it."""
    assert reply.status == 200
    assert b"[DONE]" not in reply.events
    last: dict[str, Any] = json.loads(reply.events[-1])["error"]
    return last


@pytest.mark.parametrize("cut", [1, 7, 100])
async def test_usage_is_read_wherever_it_is_cut_of_an_answer_that_is_put_together(cut: int) -> None:
    """Case 1."""
    wire = b"".join(STREAM)

    async def script(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for at in range(0, len(wire), cut):
            await exchange.chunk(wire[at : at + cut])
        await exchange.end_stream()

    async with a_fake_backend(plain) as engine, a_gateway(engine, observe_progress=True) as gw:
        await gw.post(chat())
        engine.script = script
        reply = await gw.post(chat())

        assert reply.json["choices"] == json.loads(WHOLE)["choices"]
        assert gw.tokens() == (14, 10)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(
            b'event: error\ndata: {"error":\ndata: {"message":"boom","code":500}}\n\n', id="lines"
        ),
        pytest.param(b'data: {"error":{"message":%b}}\n\n' % json.dumps(ODD).encode(), id="odd"),
        pytest.param(
            "data: {}\n\n".format(
                json.dumps(
                    {"error": {"message": ODD.replace("\n", "").replace("\r", "")}},
                    ensure_ascii=False,
                )
            ).encode(),
            id="odd and raw",
        ),
        pytest.param(b"event: error\ndata: not json\n\n", id="no json"),
        pytest.param(b'data: {"error":"plain words"}\n\n', id="words"),
        pytest.param(b'data: {"error":{"message":null,"type":null,"code":null}}\n\n', id="nulls"),
        pytest.param(b'data: {"error":{}}\n\n', id="nothing"),
        pytest.param(b'data: {"error":[1,2]}\n\n', id="a list"),
        pytest.param(b'data: {"error":true}\n\n', id="true"),
    ],
)
async def test_whatever_an_error_event_holds_it_is_one_line_at_the_end(event: bytes) -> None:
    """Cases 16 and 113."""
    async with (
        a_fake_backend(streams(ROLE, frame("a"), event, frame("b", "stop"), DONE)) as engine,
        a_gateway(engine) as gw,
    ):
        error = only_error(await gw.post(chat(stream=True)))

        assert error["message"]
        assert "None" not in error["message"]
        assert "null" not in error["message"]
        assert gw.settled() == {("failed", "server_error"): 1}


@pytest.mark.parametrize("said", [None, "", [], {}, 0, True, {"message": None}, {"message": ""}])
async def test_an_error_that_says_nothing_is_told_in_words(said: object) -> None:
    """Case 113."""
    body = json.dumps({"error": said}).encode()
    async with (
        a_fake_backend(answers(body, "500 Internal Server Error")) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert "None" not in str(reply.error["message"])
        assert len(str(reply.error["message"])) > 10


@pytest.mark.parametrize(
    "usage",
    [
        b'data: {"id":"x","usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n',
        b'data: {"id":"x","choices":null,"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"x":null}}\n\n',
    ],
)
@pytest.mark.parametrize("asks", [False, True])
async def test_a_usage_chunk_of_any_look_is_for_those_who_asked(usage: bytes, asks: bool) -> None:
    """Case 20."""
    more: Any = {"stream_options": {"include_usage": True}} if asks else {}
    script = streams(ROLE, frame("a", "stop"), usage, DONE)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True, **more))

        assert (usage in reply.body) is asks
        assert gw.tokens() == (7, 5)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_compression_that_nobody_asked_for_is_not_passed_on(
    encoding: str, stream: bool
) -> None:
    """Case 27."""

    async def script(exchange: Exchange) -> None:
        kind = "text/event-stream" if stream else "application/json"
        await exchange.answer(
            b"\x1b\x07\x00", content_type=kind, headers=(f"content-encoding: {encoding}",)
        )

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=stream))

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")
        assert "content-encoding" not in reply.headers


@pytest.mark.parametrize("when", ["3", "Wed, 21 Oct 2026 07:28:00 GMT", "0"])
@pytest.mark.parametrize("observes", [False, True])
async def test_when_to_come_back_is_the_engines_word(when: str, observes: bool) -> None:
    """Case 105."""
    async with a_fake_backend(plain) as engine, a_gateway(engine, observe_progress=observes) as gw:
        await gw.post(chat())

        async def full(exchange: Exchange) -> None:
            await exchange.answer(
                b'{"error":{"message":"full","code":503}}',
                status="503 Service Unavailable",
                headers=(f"Retry-After: {when}",),
            )

        engine.script = full
        reply = await gw.post(chat())

        assert reply.status == 503
        assert reply.headers["retry-after"] == when
        assert "retry-after-ms" not in reply.headers


async def test_a_connection_that_died_while_it_waited_is_replaced_in_the_middle_of_nothing() -> (
    None
):
    """Case 92, for an answer that is put together: its stream had not begun."""
    async with a_fake_backend(plain) as engine, a_gateway(engine, observe_progress=True) as gw:
        await gw.post(chat())

        async def dead(exchange: Exchange) -> None:
            engine.script = plain
            exchange.reset()

        engine.script = dead
        reply = await gw.post(chat())

        assert reply.status == 200
        first, dead_one, fresh = (call.connection for call in engine.calls)
        assert first == dead_one != fresh
        assert gw.settled() == {("completed", ""): 2}


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions;x",
        "/v1/chat/completions%00",
        "/v1/chat/../chat/completions",
        "/openai/v1/chat/completions",
    ],
)
async def test_a_path_that_is_nearly_one_reaches_no_engine(path: str) -> None:
    """Cases 153 and 195."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request("POST", path, json.dumps(chat()).encode())

        assert (reply.status, reply.error["code"]) == (404, "not_found")
        assert engine.calls == []


async def raw(gw: Running, head: bytes) -> bytes:
    """Send a request as it is; return the answer's head and what is there of its body."""
    data = json.dumps(chat()).encode()
    wire = await gw.dial_raw(head % len(data) + data)
    answer = await wire.read_until(b"\r\n\r\n")
    wire.close()
    return answer


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(
            b"POST http://10.0.0.1:9/v1/chat/completions HTTP/1.1\r\nhost: 10.0.0.1:9\r\n"
            b"content-length: %d\r\n\r\n",
            id="absolute",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nforwarded: host=10.0.0.1:9\r\n"
            b"x-forwarded-host: 10.0.0.1:9\r\nx-original-url: /sleep\r\nx-rewrite-url: /sleep\r\n"
            b"x-gateway-destination-endpoint: 10.0.0.1:9\r\ncontent-length: %d\r\n\r\n",
            id="headers",
        ),
    ],
)
async def test_no_request_names_where_it_goes(head: bytes) -> None:
    """Cases 193 and 194."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        answer = await raw(gw, head)

        assert answer.startswith(b"HTTP/1.1 200 ")
        [call] = engine.calls
        assert call.target == "/v1/chat/completions"
        assert call.headers["host"] == f"127.0.0.1:{engine.port}"
        assert b"10.0.0.1" not in call.head
        assert b"/sleep" not in call.head


async def test_ids_of_traces_that_are_none_go_nowhere_and_harm_nobody() -> None:
    """Case 103."""
    odd = {"traceparent": "00-zz-\u00e9", "tracestate": "=" * 600, "x-request-id": "mine-1"}
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(), headers=odd)

        assert reply.status == 200
        assert reply.headers["x-request-id"] == "mine-1"
        assert engine.calls[0].headers["x-request-id"] != "mine-1"
