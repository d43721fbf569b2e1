"""vLLM, TGI and llama.cpp look alike from a client's side of the gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.api.harness import Reply, Running, a_gateway
from tests.backends.fake_backend import MODEL
from tests.conformance.engines import CONTEXT_TOKENS, ENGINES, PATIENT, Engine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("dialect", ENGINES)]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAM = pytest.mark.parametrize("stream", [False, True])
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
ALIAS = "org/model-7B"
TOKENS = 5
Json = dict[str, Any]
USUAL_FIELDS: tuple[Json, ...] = (
    {"top_p": 1.0},
    {"stop": "zebra"},
    {"stop": ["zebra", "yak"]},
    {"stream_options": None},
    {"max_completion_tokens": 8},
    {"response_format": {"type": "text"}},
    {"n": 1},
    {"logit_bias": {}},
    {"presence_penalty": 0},
    {"frequency_penalty": 0, "temperature": 0, "seed": 3},
    {"user": "u", "metadata": {"a": "b"}},
    {"tools": None, "logprobs": None, "stop": None},
    {"priority": 5},
)
"""What clients send, and engines take differently."""


@asynccontextmanager
async def fronted(dialect: str, calls_at_most: int | None = None) -> AsyncIterator[Running]:
    """Run a gateway before one engine of a dialect."""
    async with ENGINES[dialect](calls_at_most=calls_at_most) as engine:
        backend = {"kind": engine.kind}
        models = {ALIAS: {"target": MODEL}}
        async with a_gateway(engine, backends=[backend], models=models, health=PATIENT) as gw:
            yield gw


def asking(path: str, text: str = "hi", **more: object) -> Json:
    """A call whose answer has five tokens, unless it is limited further."""
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": MODEL, **prompt, "max_tokens": 8, "vllm_xargs": {"out_len": TOKENS}, **more}


def chunks_of(reply: Reply) -> list[Json]:
    """The chunks of a stream that ended as it should."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, done = reply.events
    assert done == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def answers_of(reply: Reply, stream: bool) -> list[Json]:
    """The answer, or the chunks of it."""
    return chunks_of(reply) if stream else [reply.json]


def choices_of(reply: Reply, stream: bool) -> list[Json]:
    """The choice, whole or in pieces."""
    answers = answers_of(reply, stream)
    assert reply.status == 200, reply.body
    return [choice for answer in answers for choice in answer["choices"]]


def text_of(choices: list[Json]) -> str:
    """The text of a whole choice, or of its pieces."""
    parts = [choice.get("message") or choice.get("delta") or choice for choice in choices]
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


def reason_of(choices: list[Json]) -> str:
    """The finish reason, of which there must be exactly one, at the end."""
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert isinstance(reasons[-1], str)
    return reasons[-1]


# -- answers


@PATHS
async def test_a_whole_answer(dialect: str, path: str) -> None:
    async with fronted(dialect) as gw:
        reply = await gw.post(asking(path), path)

        assert reply.status == 200
        answer: Json = reply.json
        assert answer["object"] == ("chat.completion" if path == CHAT else "text_completion")
        assert answer["id"]
        assert answer["model"] == MODEL
        assert text_of(answer["choices"])
        assert reason_of(answer["choices"]) == "stop"
        usage = answer["usage"]
        assert usage["completion_tokens"] == TOKENS
        assert usage["total_tokens"] == usage["prompt_tokens"] + TOKENS
        assert gw.tokens()[1] == TOKENS
        assert reply.headers["x-request-id"]


@PATHS
async def test_a_stream(dialect: str, path: str) -> None:
    async with fronted(dialect) as gw:
        whole = choices_of(await gw.post(asking(path), path), stream=False)
        reply = await gw.post(asking(path, stream=True), path)

        chunks = chunks_of(reply)
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        assert {chunk["object"] for chunk in chunks} == {kind}
        assert {chunk["model"] for chunk in chunks} == {MODEL}
        [answer_id] = {chunk["id"] for chunk in chunks}
        assert answer_id
        choices = choices_of(reply, stream=True)
        assert len(choices) == len(chunks), "the usage that only the gateway asked for is not told"
        assert all(chunk.get("usage") is None for chunk in chunks)
        assert text_of(choices) == text_of(whole)
        assert reason_of(choices) == "stop"
        if path == CHAT:
            assert choices[0]["delta"]["role"] == "assistant"


@PATHS
async def test_usage_is_counted_alike_and_told_at_the_end_if_asked_for(
    dialect: str, path: str
) -> None:
    async with fronted(dialect) as gw:
        await gw.post(asking(path, stream=True), path)
        _, counted = gw.tokens()
        options = {"include_usage": True}
        reply = await gw.post(asking(path, stream=True, stream_options=options), path)

        *before, last = chunks_of(reply)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == TOKENS
        assert last["usage"]["prompt_tokens"] > 0
        assert all(chunk.get("usage") is None for chunk in before)
        assert counted == TOKENS
        assert gw.tokens()[1] == 2 * TOKENS


@PATHS
@STREAM
async def test_a_limit_is_told_from_an_end(dialect: str, path: str, stream: bool) -> None:
    async with fronted(dialect) as gw:
        limited = await gw.post(asking(path, stream=stream, max_tokens=3), path)
        ended = await gw.post(asking(path, stream=stream), path)

        assert reason_of(choices_of(limited, stream)) == "length"
        assert reason_of(choices_of(ended, stream)) == "stop"


@STREAM
async def test_tools_are_called(dialect: str, stream: bool) -> None:
    async with fronted(dialect) as gw:
        body = asking(CHAT, stream=stream, tools=TOOLS, tool_choice="required")
        choices = choices_of(await gw.post(body), stream)

        assert reason_of(choices) == "tool_calls"
        pieces = [
            call
            for choice in choices
            for call in (choice.get("message") or choice["delta"]).get("tool_calls") or ()
        ]
        assert [piece["id"] for piece in pieces if piece.get("id")] == [pieces[0]["id"]]
        names = [piece["function"].get("name") for piece in pieces]
        assert names == ["look_up"] + [None] * (len(names) - 1)
        json.loads("".join(piece["function"].get("arguments") or "" for piece in pieces))


async def test_every_engine_takes_the_usual_fields(dialect: str) -> None:
    async with fronted(dialect) as gw:
        for more in USUAL_FIELDS:
            reply = await gw.post(asking(CHAT, **more))

            assert reply.status == 200, (more, reply.body)


@PATHS
@STREAM
async def test_a_public_name_with_a_slash_is_kept(dialect: str, path: str, stream: bool) -> None:
    async with fronted(dialect) as gw:
        reply = await gw.post(asking(path, model=ALIAS, stream=stream), path)

        answers = answers_of(reply, stream)
        assert {answer["model"] for answer in answers} == {ALIAS}


# -- errors


def assert_refused(reply: Reply, status: int, *, may_retry: bool) -> None:
    """A refusal is a status and OpenAI's error, streamed or not."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert reply.error["message"]
    assert reply.headers["x-should-retry"] == str(may_retry).lower()
    assert ("retry-after" in reply.headers) is may_retry
    assert reply.headers["x-request-id"]


@PATHS
@STREAM
async def test_what_is_wrong_with_a_request_is_its_clients_fault(
    dialect: str, path: str, stream: bool
) -> None:
    async with fronted(dialect) as gw:
        wrong = await gw.post(asking(path, stream=stream, temperature=-1), path)
        long = await gw.post(asking(path, "x" * 5 * CONTEXT_TOKENS, stream=stream), path)

        assert_refused(wrong, 400, may_retry=False)
        assert_refused(long, 400, may_retry=False)
        assert gw.settled() == {("invalid", "invalid_request"): 2}


@STREAM
async def test_a_model_that_is_not_there_is_a_404(dialect: str, stream: bool) -> None:
    async with fronted(dialect) as gw:
        reply = await gw.post(asking(CHAT, model="org/none", stream=stream))

        assert_refused(reply, 404, may_retry=False)
        assert reply.error["code"] == "model_not_found"


@STREAM
async def test_a_full_engine_is_a_503_that_may_be_tried_again(dialect: str, stream: bool) -> None:
    async with fronted(dialect, calls_at_most=1) as gw:
        engine = gw.engines[0]
        assert isinstance(engine, Engine)
        async with engine.full():
            reply = await gw.post(asking(CHAT, stream=stream))

        assert_refused(reply, 503, may_retry=True)
        assert gw.settled() == {("failed", "overloaded"): 1}


@STREAM
async def test_a_full_engine_is_passed_over_for_another(dialect: str, stream: bool) -> None:
    async with (
        ENGINES[dialect](calls_at_most=1) as full,
        ENGINES[dialect]() as free,
    ):
        kinds = [{"kind": full.kind}, {"kind": free.kind}]
        async with a_gateway(full, free, backends=kinds, health=PATIENT) as gw:
            async with full.full():
                replies = [await gw.post(asking(CHAT, stream=stream)) for _ in range(3)]

            assert [reply.status for reply in replies] == [200] * 3


async def test_an_engine_that_dies_in_a_stream_is_told_as_an_error(dialect: str) -> None:
    async with fronted(dialect) as gw:
        engine = gw.engines[0]
        assert isinstance(engine, Engine)
        body = asking(CHAT, stream=True, max_tokens=1500, vllm_xargs={"out_len": 1500})
        wire = await gw.dial(body)
        await wire.read_until(b'"content":')
        await engine.crash()
        rest = await wire.read_until(b"\r\n0\r\n\r\n")
        wire.close()

        assert b"[DONE]" not in rest
        event = rest[rest.index(b'data: {"error"') :].split(b"\n")[0]
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        [(outcome, _)] = gw.settled()
        assert outcome == "failed"


async def test_an_engine_that_dies_before_it_answers_is_a_502_or_a_500(dialect: str) -> None:
    async with fronted(dialect) as gw:
        engine = gw.engines[0]
        assert isinstance(engine, Engine)
        body = asking(CHAT, max_tokens=1500, vllm_xargs={"out_len": 1500})
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(gw.post(body))
            while not asked.done():  # it is tried again, and again the engine dies
                await gw.until(lambda: engine.running > 0 or asked.done())
                await engine.crash()
                await asyncio.sleep(0.01)

        assert asked.result().status in (500, 502)
        assert_refused(asked.result(), asked.result().status, may_retry=True)


@STREAM
async def test_a_client_that_leaves_takes_its_work_with_it(dialect: str, stream: bool) -> None:
    async with fronted(dialect) as gw:
        engine = gw.engines[0]
        body = asking(CHAT, stream=stream, max_tokens=1500, vllm_xargs={"out_len": 1500})
        wire = await gw.dial(body)
        await gw.until(lambda: engine.running == 1)
        if stream:
            await wire.read_until(b'"content":')
        wire.close()

        await gw.until(lambda: engine.running == 0, within_s=1.0)
        assert gw.settled() == {("abandoned", ""): 1}


# -- a client's library


async def test_openais_client_sees_no_difference(dialect: str) -> None:
    async with (
        fronted(dialect) as gw,
        openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        question: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model=MODEL, messages=question, max_tokens=4)
        stream = await client.chat.completions.create(
            model=MODEL, messages=question, max_tokens=4, stream=True, stop="zebra", top_p=1
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=question, temperature=-1)
        tools: Any = TOOLS
        async with client.chat.completions.stream(
            model=MODEL, messages=question, tools=tools, tool_choice="required"
        ) as events:
            final = await events.get_final_completion()

    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 4
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.name == "look_up"
    assert json.loads(call.function.arguments)


async def test_openais_client_is_told_the_same_by_every_engine(dialect: str) -> None:
    question: Any = [{"role": "user", "content": "hi"}]
    long: Any = [{"role": "user", "content": "x" * 5 * CONTEXT_TOKENS}]
    async with (
        fronted(dialect) as gw,
        openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        engine = gw.engines[0]
        assert isinstance(engine, Engine)
        for messages, more, code in (
            (question, {"temperature": -1}, "invalid_request"),
            (long, {}, "context_length_exceeded"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model=MODEL, messages=messages, **more)  # type: ignore[call-overload]
            assert refused.value.code == code
            assert refused.value.type == "invalid_request_error"

        stream = await client.chat.completions.create(
            model=MODEL,
            messages=question,
            max_tokens=1500,
            stream=True,
            extra_body={"vllm_xargs": {"out_len": 1500}},
        )

        async def read_on() -> None:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    await engine.crash()

        with pytest.raises(openai.APIError) as broken:
            await read_on()
        assert broken.value.code in ("server_error", "reset")
        assert broken.value.type == "api_error"
