"""Answers that clients want whole and the gateway gets as streams: what goes wrong, and is left."""

import asyncio
import json
from typing import Any

import pytest

from tests.api.harness import Running, a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    USAGE,
    WHOLE,
    Exchange,
    FakeBackend,
    Script,
    a_fake_backend,
    answers,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio
ON = {"observe_progress": True}
BOOM = b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\n'


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"


async def learn(gw: Running, engine: FakeBackend, then: Script) -> None:
    """Let the gateway see a whole answer; from then on the engine follows another script."""
    assert (await gw.post(chat())).body == WHOLE
    assert b'"stream"' not in engine.calls[-1].body
    engine.script = then
    engine.calls.clear()


async def test_off_nothing_is_streamed_that_a_client_does_not_stream() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for _ in range(3):
            assert (await gw.post(chat())).body == WHOLE

        assert all(b'"stream"' not in call.body for call in engine.calls)


async def test_on_the_second_call_is_streamed_with_usage_and_nothing_else_changed() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, plain)
        body = json.dumps(chat(temperature=0.5)).encode()
        reply = await gw.post(body)

        asked = b'{"stream":true,"stream_options":{"include_usage":true},'
        assert engine.calls[0].body == asked + body[1:]
        assert reply.json == {**json.loads(WHOLE), "id": "x"}
        assert list(reply.json) == list(json.loads(WHOLE))
        assert gw.tokens() == (14, 10)


@pytest.mark.parametrize(
    "more",
    [
        {"echo": True},
        {"use_beam_search": True},
        {"prompt_logprobs": 1},
        {"modalities": ["text", "audio"]},
        {"return_token_ids": True},
        {"something_new": 0},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"stream_options": {"include_usage": True}},
    ],
)
async def test_what_chunks_may_not_hold_is_asked_for_whole(more: Any) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, plain)
        reply = await gw.post(chat(**more))

        assert reply.body == WHOLE
        assert b'"stream":' not in engine.calls[0].body


async def test_a_report_of_load_that_streams_do_not_have_is_asked_for_whole() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, plain)
        await gw.post(chat(), headers={"endpoint-load-metrics-format": "json"})

        assert b'"stream":' not in engine.calls[0].body


@pytest.mark.parametrize("ends", ["reset", "fin", "properly"])
async def test_a_generation_that_had_begun_is_a_502_and_not_run_twice(ends: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, streams(ROLE, frame("a"), frame("b"), ends=ends))
        reply = await gw.post(chat())

        assert reply.status == 502
        assert reply.error["code"] == "reset"
        assert reply.headers["content-type"] == "application/json"
        assert len(engine.calls) == 1
        assert gw.settled() == {("completed", ""): 1, ("failed", "reset"): 1}


@pytest.mark.parametrize("text", [b'data: {"choices"\n\n', b"data: {}}\n\n", b"data: {\n\n"])
async def test_a_chunk_that_is_no_json_is_the_engines_fault(text: bytes) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, streams(ROLE, frame("a"), text, frame("b", finish="stop"), DONE))
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")
        assert len(engine.calls) == 1
        assert gw.settled() == {("completed", ""): 1, ("failed", "bad_answer"): 1}


async def test_answers_too_deep_to_be_written_are_passed_on_whole_and_refused_in_pieces() -> None:
    deep = b"[" * 1000 + b"]" * 1000
    whole = WHOLE[:-1] + b',"deep":' + deep + b"}"
    delta = b'{"choices":[{"index":0,"delta":{"content":"a","deep":' + deep + b"}}]}"
    async with a_fake_backend(answers(whole)) as engine, a_gateway(engine, **ON) as gw:
        for _ in range(2):  # such an answer teaches nothing: the next is asked for whole, too
            assert (await gw.post(chat())).body == whole
        engine.script = plain
        await learn(gw, engine, streams(ROLE, b"data: %b\n\n" % delta, frame("b", "stop"), DONE))
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")


async def test_one_that_had_not_begun_is_tried_again() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:

        async def once(exchange: Exchange) -> None:
            engine.script = plain
            await exchange.begin_stream()
            await exchange.chunk(ROLE)
            exchange.reset()

        await learn(gw, engine, once)
        reply = await gw.post(chat())

        assert reply.status == 200
        assert len(engine.calls) == 2


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_an_error_in_the_stream_is_a_status(before: int) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        pieces = [ROLE, frame("a")][:before]
        await learn(gw, engine, streams(*pieces, BOOM, DONE))
        reply = await gw.post(chat())

        assert (reply.status, reply.error["message"]) == (500, "boom")
        # Nothing was generated before the first piece of text.
        assert len(engine.calls) == (1 if before == 2 else 3)


async def test_a_choice_that_did_not_end_is_no_answer() -> None:
    second = json.loads(frame("b")[6:])
    second["choices"][0]["index"] = 1
    other = b"data: " + json.dumps(second).encode() + b"\n\n"
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, streams(ROLE, frame("a"), other, frame("", "stop"), USAGE, DONE))
        reply = await gw.post(chat(n=2))

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")
        assert gw.settled() == {("completed", ""): 1, ("failed", "bad_answer"): 1}

        # Once is enough: from now on the engine is asked for the whole.
        engine.script = plain
        assert (await gw.post(chat())).body == WHOLE


async def test_an_answer_above_the_limit_is_given_up() -> None:
    limits = {"max_answer_bytes": 65_536}
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON, limits=limits) as gw:

        async def endless(exchange: Exchange) -> None:
            await exchange.begin_stream()
            while True:
                await exchange.chunk(frame("x" * 500))

        await learn(gw, engine, endless)
        reply = await gw.post(chat())

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")
        assert len(engine.calls) == 1


async def test_silence_is_no_sign_that_the_engine_hangs() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        promised: list[bool] = []

        async def look(exchange: Exchange) -> None:
            calls = gw.gateway.scheduler.calls.values()
            promised.extend(call.request.reports_first_token for call in calls)
            await plain(exchange)

        engine.script = look
        for _ in range(2):  # asked for whole, and as a stream
            await gw.post(chat())
        await gw.post(chat(stream=True))

        assert promised == [False, False, True]


async def test_a_client_that_leaves_takes_its_work_with_it() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        told = asyncio.Event()

        async def slow(exchange: Exchange) -> None:
            await exchange.begin_stream()
            await exchange.chunk(ROLE + frame("a"))
            told.set()
            await exchange.gone.wait()

        await learn(gw, engine, slow)
        wire = await gw.dial(chat())
        await told.wait()
        wire.close()

        await gw.until(lambda: engine.running == 0, within_s=1.0)
        assert gw.settled() == {("completed", ""): 1, ("abandoned", ""): 1}


async def test_an_engine_that_does_not_stream_is_taken_at_its_word() -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.answer(WHOLE)

    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, never)

        assert (await gw.post(chat())).body == WHOLE
        assert gw.tokens() == (14, 10)


async def test_an_engine_that_says_more_in_whole_answers_is_asked_for_those() -> None:
    more = json.dumps({**json.loads(WHOLE), "timings": {"predicted_ms": 3.5}}).encode()

    async def script(exchange: Exchange) -> None:
        if exchange.seen.json.get("stream"):
            await plain(exchange)
        else:
            await exchange.answer(more)

    async with a_fake_backend(script) as engine, a_gateway(engine, **ON) as gw:
        bodies = [(await gw.post(chat())).json for _ in range(3)]

        assert [body.get("timings") for body in bodies] == [
            {"predicted_ms": 3.5},
            None,
            {"predicted_ms": 3.5},
        ]


async def test_choices_that_come_by_turns_are_put_in_order() -> None:
    def piece(number: int, text: str, finish: str | None = None) -> bytes:
        choice = {"index": number, "delta": {"content": text}, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"

    chunks = [piece(1, "b"), piece(0, "a"), piece(1, "B", "stop"), piece(0, "A", "length")]
    async with a_fake_backend(plain) as engine, a_gateway(engine, **ON) as gw:
        await learn(gw, engine, streams(*chunks, USAGE, DONE))
        reply = await gw.post(chat(n=2))

        assert reply.json["choices"] == [
            {
                "index": number,
                "message": {"role": "assistant", "content": text},
                "finish_reason": reason,
            }
            for number, (text, reason) in enumerate([("aA", "length"), ("bB", "stop")])
        ]
