"""An engine that fails is told as a failure, once, in OpenAI's shape; nothing is left behind."""

import json

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    WHOLE,
    Exchange,
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
INVALID = "invalid_request_error"
ENGINE_ERROR = {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}


def data(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize("ends", ["reset", "fin"])
async def test_an_engine_that_breaks_off_a_stream_is_told_as_an_error_event(ends: str) -> None:
    """Case 11."""
    script = streams(frame("a"), frame("b"), frame("c"), ends=ends)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.status == 200
        assert reply.body.startswith(frame("a") + frame("b") + frame("c"))
        *_, last = reply.events
        assert json.loads(last)["error"]["code"] == "reset"
        assert b"[DONE]" not in reply.body
        assert len(engine.calls) == 1
        assert gw.settled() == {("failed", "reset"): 1}


async def test_a_whole_answer_cut_short_is_a_502() -> None:
    """Case 11, not streamed."""

    async def script(exchange: Exchange) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n"
        await exchange.send(head + WHOLE)
        exchange.close()

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (502, "reset")
        assert gw.settled() == {("failed", "reset"): 1}


@pytest.mark.parametrize("ends", ["properly", "reset"])
async def test_half_an_event_is_not_glued_to_the_error(ends: str) -> None:
    """Case 12."""
    half = b'data: {"id":"x","choices":[{"index":0,"del'
    async with (
        a_fake_backend(streams(frame("a"), half, ends=ends)) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert [json.loads(event) for event in reply.events[:-1]] == [json.loads(frame("a")[6:])]
        assert json.loads(reply.events[-1])["error"]["code"] == "reset"


async def test_an_orderly_end_without_a_reason_is_a_truncated_answer() -> None:
    """Case 10, run B."""
    async with a_fake_backend(streams(ROLE, frame("a"))) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert "error" in json.loads(reply.events[-1])
        assert gw.settled() == {("failed", "reset"): 1}


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "invalid_request"),
        (401, "authentication_error", "backend_unauthorized"),
        (404, "invalid_request_error", "not_found"),
        (422, "invalid_request_error", "invalid_request"),
        (429, "overloaded_error", "overloaded"),
        (500, "api_error", "server_error"),
        (503, "overloaded_error", "overloaded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_stream_keeps_its_status(
    status: int, kind: str, code: str, stream: bool
) -> None:
    """Cases 13 and 105. The words are the engine's; what programs go by is ours."""
    body = {"message": "too long", "type": "BadRequestError", "param": "messages", "code": status}

    async def script(exchange: Exchange) -> None:
        text = json.dumps({"error": body}).encode()
        headers = ("Retry-After: 3", "x-ratelimit-remaining-requests: 0")
        await exchange.answer(text, status=f"{status} Whatever", headers=headers)

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=stream))

        assert reply.status == status
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["retry-after"] == "3"
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert reply.error == {**body, "type": kind, "code": code}
        # Whoever is to blame for a bad request, trying again does not help.
        retried = status in (429, 500, 503)
        assert reply.headers["x-should-retry"] == ("true" if retried else "false")
        assert len(engine.calls) == (3 if retried else 1)


@pytest.mark.parametrize("prelude", [b"", b": keep-alive\n\n"])
async def test_an_error_as_the_first_event_becomes_a_status(prelude: bytes) -> None:
    """Case 14, and vLLM's way to refuse a stream when its queue is full."""
    error = {**ENGINE_ERROR, "code": 503}
    script = streams(prelude + data({"error": error}), DONE)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.status == 503
        assert (reply.error["message"], reply.error["code"]) == (error["message"], "overloaded")
        assert gw.settled() == {("failed", "overloaded"): 1}


async def test_a_full_engine_sends_the_call_to_another() -> None:
    """Case 80."""
    full = streams(data({"error": {**ENGINE_ERROR, "code": 503}}), DONE)
    async with (
        a_fake_backend(full) as first,
        a_fake_backend(plain) as second,
        a_gateway(first, second) as gw,
    ):
        for _ in range(4):
            assert (await gw.post(chat(stream=True))).status == 200

        assert len(second.calls) == 4
        assert gw.settled() == {("completed", ""): 4}


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(data({"error": ENGINE_ERROR}), id="vLLM"),
        pytest.param(
            b'data:{"error":"Request failed during generation: CUDA OOM",'
            b'"error_type":"generation"}\n\n',
            id="TGI",
        ),
        pytest.param(b'event: error\ndata: {"message": "boom"}\n\n', id="by its name"),
        pytest.param(
            data({"choices": [{"delta": {}, "finish_reason": "abort"}]}), id="aborted by vLLM"
        ),
    ],
)
@pytest.mark.parametrize("ends", ["properly", "never"])
async def test_an_error_in_mid_stream_ends_it_at_once(event: bytes, ends: str) -> None:
    """Cases 15 and 17; what the engine says after it, [DONE] above all, is not passed on."""
    script = streams(frame("a"), frame("b"), event + DONE, ends=ends)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body.startswith(frame("a") + frame("b"))
        last = json.loads(reply.events[-1])
        assert set(last) == {"error"}
        assert isinstance(last["error"]["message"], str)
        assert b"[DONE]" not in reply.body
        assert gw.settled() == {("failed", "server_error"): 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_text_cannot_add_events(stream: bool) -> None:
    """Case 16."""
    text = "line1\nline2\r\n\r\ndata: [DONE]\n\n"
    error = data({"error": {**ENGINE_ERROR, "message": text}})
    async with a_fake_backend(streams(frame("a"), error)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))
        assert len(reply.events) == 2
        assert json.loads(reply.events[-1])["error"]["message"] == text

        engine.script = answers(json.dumps({"error": {"message": text}}).encode(), "500 No")
        reply = await gw.post(chat(stream=stream))
        assert (reply.status, reply.error["message"]) == (500, text)


async def test_a_call_is_never_sent_again_once_a_byte_is_out() -> None:
    """Case 77."""
    broken = streams(frame("Hello"), ends="reset")
    async with (
        a_fake_backend(broken) as first,
        a_fake_backend(plain) as second,
        a_gateway(first, second) as gw,
    ):
        while not first.calls:
            second.calls.clear()
            reply = await gw.post(chat(stream=True))

        assert b"error" in reply.events[-1]
        assert second.calls == []


async def test_a_clients_mistake_is_not_tried_elsewhere() -> None:
    """Cases 78 and 83."""
    body = json.dumps({"detail": [{"loc": ["body"], "msg": "field required"}]}).encode()
    refuses = answers(body, "422 Unprocessable Entity")
    async with (
        a_fake_backend(refuses) as first,
        a_fake_backend(refuses) as second,
        a_gateway(first, second) as gw,
    ):
        replies = [await gw.post(chat()) for _ in range(20)]

        assert {reply.status for reply in replies} == {422}
        assert replies[0].error["message"] == "field required"
        assert len(first.calls) + len(second.calls) == 20
        assert gw.settled() == {("invalid", "invalid_request"): 20}


async def test_a_slow_generation_is_stopped_and_not_started_twice() -> None:
    """Cases 39 and 81."""
    async with (
        a_fake_backend(after(10)) as first,
        a_fake_backend(after(10)) as second,
        a_gateway(first, second, timeouts={"total_s": 0.3}) as gw,
    ):
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (504, "timeout_total")
        (seen,) = first.calls + second.calls
        await gw.until(lambda: seen.gone_at is not None)


@pytest.mark.parametrize(
    ("script", "is_fine"),
    [
        pytest.param(
            streams(frame("a"), frame("b", "stop"), DONE, gap_s=0.2), True, id="gaps are short"
        ),
        pytest.param(streams(frame("a"), ends="never"), False, id="silence"),
        pytest.param(
            streams(frame("a"), *[b": keep-alive\n\n"] * 20, gap_s=0.1), False, id="only comments"
        ),
    ],
)
async def test_silence_between_tokens_ends_a_stream(script: Script, is_fine: bool) -> None:
    """Cases 88 and 89: the first token may take longer than the next."""
    timeouts = {"inter_token_s": 0.4, "first_token_s": 5.0}
    async with (
        a_fake_backend(after(0.6, script)) as engine,
        a_gateway(engine, timeouts=timeouts) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert reply.status == 200
        if is_fine:
            assert reply.body.endswith(DONE)
        else:
            assert json.loads(reply.events[-1])["error"]["code"] == "timeout_inter_token"
            await gw.until(lambda: engine.calls[0].gone_at is not None)


async def test_a_first_token_that_does_not_come_is_a_504() -> None:
    async with (
        a_fake_backend(streams(b": keep-alive\n\n", ends="never")) as engine,
        a_gateway(engine, timeouts={"first_token_s": 0.3}) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert (reply.status, reply.error["code"]) == (504, "timeout_first_token")
        await gw.until(lambda: engine.calls[0].gone_at is not None)


async def test_a_total_limit_ends_a_stream_that_flows() -> None:
    script = streams(*[frame("a")] * 100, gap_s=0.05)
    async with (
        a_fake_backend(script) as engine,
        a_gateway(engine, timeouts={"total_s": 0.4, "inter_token_s": 5}) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert json.loads(reply.events[-1])["error"]["code"] == "timeout_total"


def dies_on_reuse(*, after_s: float = 0.0) -> Script:
    """Answer the first call of a connection; let the second die without a byte."""
    used: set[int] = set()

    async def script(exchange: Exchange) -> None:
        if exchange.seen.connection in used:
            if after_s:
                await exchange.pause(after_s)
            exchange.close()
            return
        used.add(exchange.seen.connection)
        await plain(exchange)

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_pooled_connection_is_replaced_without_anybody_noticing(stream: bool) -> None:
    """Case 92."""
    async with a_fake_backend(dies_on_reuse()) as engine, a_gateway(engine) as gw:
        for _ in range(3):
            assert (await gw.post(chat(stream=stream))).status == 200

        # The second and third each met the dead connection of the one before, or had it closed.
        assert 3 <= len(engine.calls) <= 5
        assert len({seen.connection for seen in engine.calls}) == 3
        assert gw.gateway.counters.failures == {}


async def test_a_fresh_connection_that_dies_is_a_failed_attempt() -> None:
    async with a_fake_backend(resets) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (502, "reset")
        assert len(engine.calls) == 3
        assert gw.gateway.counters.failures == {"reset": 3}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HELLO\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n", id="status 999"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n", id="odd length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n", id="long header"),
        pytest.param(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", id="302"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", id="204"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
async def test_what_is_not_an_answer_is_a_502(raw: bytes) -> None:
    """Case 109."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(raw)
        exchange.close()

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert reply.status == 502
        assert reply.error["code"] in ("bad_answer", "reset", "server_error")


async def test_an_interim_answer_is_skipped() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await exchange.answer(WHOLE)

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat())).body == WHOLE


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            {"error": {"message": "m", "type": "t", "param": "p", "code": 400}},
            {"message": "m", "type": INVALID, "param": "p", "code": "invalid_request"},
            id="vLLM",
        ),
        pytest.param(
            {"object": "error", "message": "m", "type": "t", "param": None, "code": 400},
            {"message": "m", "type": INVALID, "param": None, "code": "invalid_request"},
            id="vLLM before 0.9",
        ),
        pytest.param(
            {"error": "m", "error_type": "validation"},
            {"message": "m", "type": INVALID, "param": None, "code": "invalid_request"},
            id="TGI",
        ),
        pytest.param(
            {"error": "Unauthorized"},
            {
                "message": "Unauthorized",
                "type": INVALID,
                "param": None,
                "code": "invalid_request",
            },
            id="a wrong key",
        ),
    ],
)
async def test_engines_errors_get_one_shape(
    body: dict[str, object], expected: dict[str, object]
) -> None:
    """Case 110, in pieces and long."""

    async def script(exchange: Exchange) -> None:
        text = json.dumps({**body, "padding": "x" * 20_000}).encode()
        head = f"HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
        await exchange.send(head.encode() + b"\r\n\r\n")
        for at in range(0, len(text), 8000):
            await exchange.pause(0.02)
            await exchange.send(text[at : at + 8000])

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert (reply.status, reply.error) == (400, expected)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "told"),
    [
        pytest.param("502 Bad Gateway", "text/html", b"<h1>nginx</h1>" * 200, 502, id="nginx"),
        pytest.param("503 Unavailable", "text/plain", b"upstream connect error", 503, id="envoy"),
        pytest.param("500 No", "text/plain", b"", 500, id="empty"),
        pytest.param("200 OK", "text/html", b"<h1>Log in</h1>", 502, id="captive"),
        pytest.param("502 No", "application/json", b"<h1>nginx</h1>", 502, id="mislabelled"),
        pytest.param("200 OK", "application/json", b"null", 502, id="null"),
        pytest.param("200 OK", "application/json", b"{}", 502, id="no choices"),
        pytest.param("200 OK", "application/json", b"{", 502, id="broken"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_pages_are_not_passed_on(
    status: str, content_type: str, body: bytes, told: int, stream: bool
) -> None:
    """Cases 111 and 112."""
    async with (
        a_fake_backend(answers(body, status, content_type)) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post(chat(stream=stream))

        assert reply.status == told
        assert "<h1>" not in str(reply.error["message"])
        assert [outcome for outcome, _ in gw.settled()] == ["failed"]


async def test_an_error_with_status_200_is_an_error() -> None:
    """Case 112."""
    body = json.dumps({"error": ENGINE_ERROR}).encode()
    async with a_fake_backend(answers(body)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert (reply.status, reply.error["message"]) == (500, ENGINE_ERROR["message"])
        assert gw.settled() == {("failed", "server_error"): 1}


async def test_numbers_that_are_no_json_pass_unchanged() -> None:
    """Cases 121 and 122, on the way back."""
    whole = WHOLE.replace(b'"hello"', b'"\\ud83d", "logprobs": [-Infinity, NaN, 1e999]')
    event = frame("x", "stop").replace(b'"x"', b'"\\ude00", "logprob": -Infinity')
    async with a_fake_backend(answers(whole)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat())).body == whole
        engine.script = streams(event, DONE)
        assert (await gw.post(chat(stream=True))).body == event + DONE
        assert gw.settled() == {("completed", ""): 2}


async def test_slots_come_back_whatever_goes_wrong() -> None:
    """Case 44."""
    failures: list[Script] = [
        resets,
        after(0.3),
        answers(b"<html>", "502 Bad Gateway", "text/html"),
        answers(b"{"),
        streams(frame("a"), ends="reset"),
    ]
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, backends=[{"max_in_flight": 2}], timeouts={"total_s": 0.1}) as gw,
    ):
        for script in failures:
            engine.script = script
            for _ in range(5):
                reply = await gw.post(chat(stream=True))
                assert reply.status >= 500 or b"error" in reply.events[-1]
        await gw.quiesce()
        assert engine.peak <= 2


async def test_an_engine_that_cannot_be_reached_is_a_502_at_once_and_comes_back() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await engine.stop()
        reply = await gw.post(chat())
        assert reply.status in (502, 503)
        assert reply.headers["x-should-retry"] == "true"
        await gw.until(lambda: gw.gateway.missing() == "no backend is up")
        reply = await gw.post(chat())
        assert (reply.status, reply.error["code"]) == (503, "no_healthy_backend")
        assert int(reply.headers["retry-after"]) >= 1
        assert (await gw.request("GET", "/readyz")).status == 503

        await engine.start()
        await gw.until(lambda: gw.gateway.missing() is None)
