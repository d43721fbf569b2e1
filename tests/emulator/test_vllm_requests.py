"""Requests as vLLM reads them: what it refuses, in its words, and what is asked for."""

from typing import Any

import orjson
import pytest

from gateway.emulator.asks import Ask, Refusal
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import natural_output_tokens, read_messages
from gateway.emulator.vllm_requests import read_chat, read_completion, read_tokenize
from tests.emulator.asgi import a_chat, some_options

JSON = {b"content-type": b"application/json"}
SMALL = some_options(max_model_len=4096)


def chat(body: object, options: EngineOptions = SMALL, headers: dict[bytes, bytes] = JSON) -> Ask:
    """Read a chat request."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return read_chat(headers, raw, options, fresh_id="fresh", created=7)


def completion(body: object, options: EngineOptions = SMALL) -> Ask:
    """Read a completion request."""
    return read_completion(JSON, orjson.dumps(body), options, fresh_id="fresh", created=7)


def error_of(refused: Refusal) -> dict[str, Any]:
    """Return the error in a refusal, whose code is its status."""
    error: dict[str, Any] = orjson.loads(refused.reply.body)["error"]
    assert error["code"] == refused.reply.status
    return error


@pytest.mark.parametrize(
    ("body", "status", "kind", "param", "message"),
    [
        (
            a_chat(model="nope"),
            *(404, "NotFoundError", "model"),
            "The model `nope` does not exist. Valid aliases: m1.",
        ),
        (
            b'{"model": "tiny", "messages": [',
            *(400, "Bad Request", "body.31"),
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.31', 'msg': 'JSON decode "
            "error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}",
        ),
        (
            b"",
            *(400, "Bad Request", "body"),
            "1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', "
            "'input': 'None'}",
        ),
        (
            [1, 2],
            *(400, "Bad Request", "body"),
            "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input "
            "should be a valid dictionary or object to extract fields from', 'input': '<list of 2 "
            "items>'}",
        ),
        (
            {"model": "m1", "max_tokens": 1},
            *(400, "Bad Request", "body.messages"),
            "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field "
            "required', 'input': '<dict of 2 items>'}",
        ),
        (
            a_chat(messages=[]),
            *(400, "BadRequestError", None),
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
        (
            a_chat(temperature=-1),
            *(400, "BadRequestError", "temperature"),
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            a_chat(temperature="hot"),
            *(400, "Bad Request", "body.temperature"),
            "1 validation error:\n  {'type': 'float_parsing', 'loc': 'body.temperature', 'msg': "
            "'Input should be a valid number, unable to parse string as a number', 'input': 'hot'}",
        ),
        (
            a_chat(top_p=0),
            *(400, "BadRequestError", "top_p"),
            "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)",
        ),
        (
            a_chat(max_tokens=0),
            *(400, "BadRequestError", "max_tokens"),
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        (
            a_chat(max_tokens=100_000),
            *(400, "BadRequestError", "max_tokens"),
            "max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer "
            "output tokens. (parameter=max_tokens, value=100000)",
        ),
        (a_chat(n=0), 400, "BadRequestError", None, "n must be at least 1, got 0."),
        (a_chat(n=10**9), 400, "BadRequestError", None, "n must be at most 16384, got 1000000000."),
        (
            a_chat(logprobs=True, top_logprobs=50),
            *(400, "BadRequestError", "logprobs"),
            "Requested sample logprobs of 50, which is greater than max allowed: 20 "
            "(parameter=logprobs, value=50)",
        ),
        (
            a_chat(response_format={"type": "json_schema"}),
            *(400, "BadRequestError", "response_format"),
            "When response_format type is 'json_schema', the 'json_schema' field must be provided. "
            "(parameter=response_format)",
        ),
        (
            a_chat("x" * 4 * 4096),
            *(400, "BadRequestError", "input_tokens"),
            "This model's maximum context length is 4096 tokens. However, your prompt contains at "
            "least 4097 input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)",
        ),
        (
            a_chat("x" * 4 * 3996, max_tokens=97),
            *(400, "BadRequestError", "input_tokens"),
            "This model's maximum context length is 4096 tokens. However, you requested 97 output "
            "tokens and your prompt contains 4000 input tokens, for a total of 4097 tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens. "
            "(parameter=input_tokens, value=4000)",
        ),
        (
            a_chat(stream_options={"include_usage": True}),
            *(400, "BadRequestError", "stream_options"),
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ),
        (
            a_chat(max_tokens=2, min_tokens=5),
            *(400, "BadRequestError", None),
            "min_tokens must be less than or equal to max_tokens=2, got 5.",
        ),
        (
            a_chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            *(400, "BadRequestError", None),
            "m1 is not a multimodal model",
        ),
    ],
)
def test_a_chat_request_is_refused_in_vllms_words(
    body: object, status: int, kind: str, param: str | None, message: str
) -> None:
    with pytest.raises(Refusal) as refused:
        chat(body)

    assert refused.value.reply.status == status
    assert error_of(refused.value) == {
        "message": message,
        "type": kind,
        "param": param,
        "code": status,
    }


@pytest.mark.parametrize("prompt", ["", [], None])
def test_a_completion_without_a_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(Refusal) as refused:
        completion({"model": "m1", "prompt": prompt})

    assert error_of(refused.value)["message"] == (
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    )


@pytest.mark.parametrize("headers", [{}, {b"content-type": b"text/plain"}])
def test_only_json_is_read(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(Refusal) as refused:
        chat(a_chat(), headers=headers)

    assert "Unsupported Media Type" in error_of(refused.value)["message"]


@pytest.mark.parametrize(
    "odd",
    [
        {"frobnicate": 1},
        {"model": None},
        {"max_tokens": None},
        {"messages": [{"role": "wizard", "content": None}]},
        {"max_tokens": "12"},
        {"temperature": 1, "top_p": 1.0, "stop": ["x"], "seed": 3},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_what_vllm_lets_pass_passes(odd: dict[str, Any]) -> None:
    assert chat(a_chat(**odd)).model == "m1"


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        pytest.param({"vllm_xargs": {"out_len": 30}}, 30, "stop", id="the client knows"),
        pytest.param(
            {"vllm_xargs": {"out_len": 30}, "max_tokens": 30}, 30, "stop", id="just within"
        ),
        pytest.param({"vllm_xargs": {"out_len": 30}, "max_tokens": 29}, 29, "length", id="cut off"),
        pytest.param(
            {"vllm_xargs": {"out_len": 30}, "max_tokens": 9, "max_completion_tokens": 40},
            *(30, "stop"),
            id="the newer name wins",
        ),
        pytest.param({"vllm_xargs": {"out_len": 3}, "min_tokens": 8}, 8, "stop", id="min_tokens"),
        pytest.param({"vllm_xargs": {"out_len": -3}}, 1, "stop", id="at least one token"),
        pytest.param({"ignore_eos": True, "max_tokens": 50}, 50, "length", id="ignore_eos"),
        pytest.param({"vllm_xargs": {"out_len": 9999}}, 4090, "length", id="the context ends it"),
    ],
)
def test_the_answers_length(fields: dict[str, Any], tokens: int, reason: str) -> None:
    [choice] = chat(a_chat("hello", None, **fields)).choices

    assert (choice.output_tokens, choice.finish_reason) == (tokens, reason)


def test_the_prompt_decides_the_length_if_nobody_else_does() -> None:
    [choice] = chat(a_chat("hello", None)).choices

    assert choice.output_tokens == natural_output_tokens(read_messages([("user", "hello")]), 0, 0)


def test_several_choices_share_their_prompt() -> None:
    ask = chat(a_chat(n=3))

    assert [choice.index for choice in ask.choices] == [0, 1, 2]
    assert len({choice.prefix for choice in ask.choices}) == 1
    assert ask.prompt_tokens == ask.choices[0].prompt_tokens == 6


def test_several_prompts_have_their_choices_in_order() -> None:
    ask = completion({"prompt": ["one", "another one"], "n": 2})

    assert [choice.prompt_tokens for choice in ask.choices] == [1, 1, 3, 3]
    assert ask.prompt_tokens == 4
    assert ask.max_tokens == 16


def test_a_token_id_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        completion({"prompt": [99999999]})

    assert error_of(refused.value)["message"] == "Token id 99999999 is out of vocabulary"


def test_token_ids_are_a_prompt() -> None:
    assert completion({"prompt": [5, 6, 7]}).prompt_tokens == 3
    assert completion({"prompt": [[5, 6, 7], [8]]}).prompt_tokens == 4


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ({}, {}, "chatcmpl-fresh"),
        ({}, {"request_id": "body"}, "chatcmpl-body"),
        ({b"x-request-id": b"header"}, {"request_id": "body"}, "chatcmpl-header"),
    ],
)
def test_the_request_id_becomes_the_answers(
    headers: dict[bytes, bytes], fields: dict[str, Any], expected: str
) -> None:
    assert chat(a_chat(**fields), headers={**JSON, **headers}).id == expected


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


@pytest.mark.parametrize(
    ("choice", "tool", "is_required"),
    [
        ("auto", None, False),
        ("none", None, False),
        ("required", "look_up", True),
        ({"type": "function", "function": {"name": "other"}}, "other", False),
    ],
)
def test_a_tool_is_called_only_when_it_must_be(
    choice: object, tool: str | None, is_required: bool
) -> None:
    ask = chat(a_chat(tools=TOOLS, tool_choice=choice))

    assert (ask.tool, ask.is_tool_required) == (tool, is_required)
    assert ask.prompt_tokens > chat(a_chat()).prompt_tokens


def test_auto_tool_choice_can_be_refused() -> None:
    with pytest.raises(Refusal) as refused:
        chat(a_chat(tools=TOOLS), some_options(auto_tool_choice=False))

    assert error_of(refused.value)["message"].startswith('"auto" tool choice requires')


@pytest.mark.parametrize("choice", ["sometimes", {"function": 3}, 4])
def test_a_tool_choice_that_is_none_is_refused(choice: object) -> None:
    with pytest.raises(Refusal):
        chat(a_chat(tools=TOOLS, tool_choice=choice))


def test_tokenize_counts_prompts_and_messages() -> None:
    assert read_tokenize(JSON, b'{"prompt": "hello"}').tokens == 2
    assert read_tokenize(JSON, orjson.dumps(a_chat("hello"))).tokens == 6
