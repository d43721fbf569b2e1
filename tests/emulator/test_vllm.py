"""VllmDialect: the shapes of answers, events, errors and the small endpoints."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.emulator.asks import Ask, Progress, Refusal
from gateway.emulator.metrics import EngineCounters, EngineStatus
from gateway.emulator.options import EngineOptions
from gateway.emulator.vllm import VllmDialect
from tests.emulator.asgi import CHAT, COMPLETIONS, a_chat, content, read_events, some_options

JSON = {b"content-type": b"application/json"}
OPTIONS = some_options(max_model_len=4096)
DIALECT = VllmDialect(OPTIONS)


def ask_for(body: dict[str, object], path: str = CHAT) -> Ask:
    """Return what a request asks for."""
    return DIALECT.generates[path](JSON, orjson.dumps(body), fresh_id="id", created=7)


def finished(ask: Ask, cached_tokens: int = 0) -> list[Progress]:
    """All choices are done."""
    return [
        Progress(choice.output_tokens, 0, cached_tokens, choice.finish_reason)
        for choice in ask.choices
    ]


def streamed(ask: Ask, *steps: int) -> list[Any]:
    """The events when every choice has come so far at each step, and is done at the last."""
    progress = [Progress() for _ in ask.choices]
    body = b""
    for tokens in steps:
        for now in progress:
            now.tokens = tokens
            now.finish_reason = "stop" if tokens == steps[-1] else None
        body += DIALECT.frames(ask, progress)
    return read_events(body + DIALECT.ending(ask, progress))


def test_a_whole_chat_answer() -> None:
    ask = ask_for(a_chat(out_len=3))
    answer = orjson.loads(DIALECT.answer(ask, finished(ask, cached_tokens=2)).body)

    text = answer["choices"][0]["message"]["content"]
    assert len(text.split()) == 3
    assert answer == {
        "id": "chatcmpl-id",
        "object": "chat.completion",
        "created": 7,
        "model": "m1",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-emulated",
        "usage": {
            "prompt_tokens": 6,
            "total_tokens": 9,
            "completion_tokens": 3,
            "prompt_tokens_details": {
                "cached_tokens": 2,
                "created_cache_tokens": 0,
                "multimodal_tokens": None,
            },
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def test_a_whole_completion() -> None:
    ask = ask_for({"prompt": ["one", "two"], "n": 2, "max_tokens": 5}, COMPLETIONS)
    answer = orjson.loads(DIALECT.answer(ask, finished(ask)).body)

    assert (answer["id"], answer["object"]) == ("cmpl-id", "text_completion")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(len(choice["text"].split()) == 5 for choice in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 20


def test_a_chat_stream_begins_with_the_role_and_ends_with_a_reason() -> None:
    events = streamed(ask_for(a_chat(out_len=9, stream=True)), 1, 1, 5, 9)

    assert [event["choices"][0]["delta"] for event in events[:1]] == [
        {"role": "assistant", "content": ""}
    ]
    deltas = [event["choices"][0]["delta"]["content"] for event in events[1:-1]]
    assert [len(delta.split()) for delta in deltas] == [1, 4, 4]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [
        *[None, None, None],
        "stop",
    ]
    assert all(event["object"] == "chat.completion.chunk" for event in events[:-1])
    assert all("usage" not in event for event in events[:-1])
    assert events[-1] == "[DONE]"


def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    ask = ask_for(a_chat(out_len=9))
    whole = orjson.loads(DIALECT.answer(ask, finished(ask)).body)

    assert content(streamed(ask, 2, 7, 9)) == whole["choices"][0]["message"]["content"]


def test_usage_comes_last_if_asked_for() -> None:
    ask = ask_for(a_chat(out_len=9, stream=True, stream_options={"include_usage": True}))
    events = streamed(ask, 4, 9)

    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 9


def test_usage_can_come_with_every_token() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = streamed(ask_for(a_chat(out_len=9, stream=True, stream_options=options)), 4, 9)

    counts = [event["usage"]["completion_tokens"] for event in events if "usage" in event]
    assert counts == [4, 9, 9]


def test_choices_of_a_stream_are_told_apart_by_index() -> None:
    events = streamed(ask_for(a_chat(out_len=9, n=2, stream=True)), 4, 9)

    ends = [e["choices"][0]["index"] for e in events[:-1] if e["choices"][0]["finish_reason"]]
    assert ends == [0, 1]


def test_a_completion_stream() -> None:
    ask = ask_for({"prompt": "hello", "max_tokens": 9, "stream": True}, COMPLETIONS)
    events = streamed(ask, 4, 9)

    assert [len(event["choices"][0]["text"].split()) for event in events[:-1]] == [4, 5]
    assert events[0]["object"] == "text_completion"


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def test_a_required_tool_is_called() -> None:
    ask = ask_for(a_chat(out_len=3, tools=TOOLS, tool_choice="required"))
    [choice] = orjson.loads(DIALECT.answer(ask, finished(ask)).body)["choices"]

    [tool_call] = choice["message"]["tool_calls"]
    assert tool_call["function"]["name"] == "look_up"
    assert len(orjson.loads(tool_call["function"]["arguments"])["text"].split()) == 3
    assert choice["finish_reason"] == "tool_calls"


def test_a_tool_call_streams_its_arguments() -> None:
    named = {"type": "function", "function": {"name": "look_up"}}
    ask = ask_for(a_chat(out_len=9, tools=TOOLS, tool_choice=named, stream=True))
    events = streamed(ask, 4, 9)

    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "look_up"
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert len(orjson.loads(arguments)["text"].split()) == 9
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


def test_json_is_json_unless_cut_off() -> None:
    wanted = {"type": "json_object"}
    whole = ask_for(a_chat(out_len=9, response_format=wanted))
    cut = ask_for(a_chat(out_len=9, response_format=wanted, max_tokens=8))

    def text(ask: Ask) -> str:
        answer = orjson.loads(DIALECT.answer(ask, finished(ask)).body)
        return str(answer["choices"][0]["message"]["content"])

    assert len(orjson.loads(text(whole))["text"].split()) == 9
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(text(cut))


# -- the small endpoints


def no_status() -> EngineStatus:
    """Stand for an engine that nobody should ask."""
    raise AssertionError


def a_status() -> EngineStatus:
    """Return an idle engine's."""
    return EngineStatus(
        counters=EngineCounters(),
        model="m1",
        running=1,
        waiting=2,
        kv_share=0.25,
        kv_reserved_tokens=0,
        generating_tokens=3,
        preemptions=0,
        prefix_queries=0,
        prefix_hits=0,
        block_tokens=16,
        blocks=100,
        prefix_caching=True,
        http_requests=4,
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("GET", "/health", b"", 200, b""),
        ("GET", "/version", b"", 200, b'{"version":"0.32.0"}'),
        ("GET", "/load", b"", 200, b'{"server_load":4}'),
        (
            *("POST", "/tokenize", b'{"prompt": "hello you"}', 200),
            b'{"count":3,"max_model_len":4096,"tokens":[0,1,2],"token_strs":null}',
        ),
        ("POST", "/v1/nothing", b"{}", 404, b'{"detail":"Not Found"}'),
        ("GET", CHAT, b"", 405, b'{"detail":"Method Not Allowed"}'),
        ("POST", "/health", b"", 405, b'{"detail":"Method Not Allowed"}'),
    ],
)
def test_a_small_endpoint(method: str, path: str, body: bytes, status: int, answer: bytes) -> None:
    reply = DIALECT.plain(method, path, JSON, body, a_status)

    assert (reply.status, reply.body) == (status, answer)


def test_every_name_is_a_model_with_its_context() -> None:
    options = EngineOptions(name="x", profile=OPTIONS.profile, models=("org/m1", "alias"))
    reply = VllmDialect(options).plain("GET", "/v1/models", {}, b"", no_status)

    models = orjson.loads(reply.body)
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["org/m1", "alias"]
    assert {model["max_model_len"] for model in models["data"]} == {131_072}


def test_detokenize_gives_words() -> None:
    reply = DIALECT.plain("POST", "/detokenize", JSON, b'{"tokens": [4, 5, 6]}', no_status)

    assert len(orjson.loads(reply.body)["prompt"].split()) == 3


def test_the_metrics_page_is_text() -> None:
    reply = DIALECT.plain("GET", "/metrics", {}, b"", a_status)

    assert reply.content_type.startswith("text/plain")
    assert b'vllm:num_requests_waiting{engine="0",model_name="m1"} 2.0' in reply.body


@pytest.mark.parametrize(
    ("path", "key", "is_open"),
    [
        (CHAT, "Bearer k1", True),
        (CHAT, "Bearer k2", False),
        (CHAT, None, False),
        ("/v1/models", None, False),
        ("/health", None, True),
        ("/tokenize", None, True),
        ("/metrics", None, True),
    ],
)
def test_the_key_guards_v1_only(path: str, key: str | None, is_open: bool) -> None:
    dialect = VllmDialect(some_options(api_key="k1"))
    headers = {} if key is None else {b"authorization": key.encode()}

    if is_open:
        dialect.authorize(path, headers)
        return
    with pytest.raises(Refusal) as refused:
        dialect.authorize(path, headers)
    assert (refused.value.reply.status, refused.value.reply.body) == (
        401,
        b'{"error":"Unauthorized"}',
    )


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (DIALECT.busy, 503, "The engine is currently busy"),
        (DIALECT.dead, 500, "EngineCore encountered an issue."),
        (DIALECT.stopping, 500, "cannot schedule new futures after shutdown"),
        (DIALECT.failed, 500, "Internal server error"),
    ],
)
def test_an_error_in_a_stream_is_an_event_and_an_end(
    reply: Callable[[], Any], status: int, words: str
) -> None:
    error, done = read_events(DIALECT.in_stream(reply(), ask_for(a_chat())))

    assert error["error"]["code"] == reply().status == status
    assert error["error"]["message"].startswith(words)
    assert done == "[DONE]"
