"""The emulated TGI against what the source of TGI 3.3.6-dev0 says of its wire."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.core.profiles import GpuProfile
from gateway.emulator.server import EngineServer
from tests.emulator.asgi import CHAT, COMPLETIONS, Answer, a_chat, call, read_events, some_options
from tests.virtual_time import run_in_virtual_time

GENERATE = "/generate"
STREAM = "/generate_stream"
SMALL = GpuProfile(
    name="small",
    prefill_s_per_token=0.0001,
    decode_base_s=0.01,
    kv_read_s_per_token=0.0,
    step_overhead_s=0.0,
    kv_tokens=1000,
    block_tokens=1,
)


def server(**changes: Any) -> EngineServer:
    """Return an emulated TGI."""
    return EngineServer(some_options(kind="tgi", min_chunk_s=0.0, **changes))


def ask(
    path: str, body: object, headers: Mapping[str, str] | None = None, **changes: Any
) -> Answer:
    """Send one request to a fresh engine."""

    async def main() -> Answer:
        given = {"content-type": "application/json", **(headers or {})}
        return await call(server(**changes), path, body, headers=given)

    return run_in_virtual_time(main())


def generate(text: str = "hello", **parameters: object) -> dict[str, object]:
    """Return a request of TGI's own API."""
    return {"inputs": text, "parameters": parameters}


# -- chat


def test_a_whole_chat_answer_has_no_id_and_bears_timing_headers() -> None:
    answer = ask(CHAT, a_chat(out_len=5, max_tokens=20))

    assert answer.status == 200
    assert answer.json["id"] == ""
    assert answer.json["object"] == "chat.completion"
    assert answer.json["model"] == "m1"
    assert answer.json["system_fingerprint"] == "3.3.6-dev0-native"
    [choice] = answer.json["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["message"]["content"].split()) == 4, "the fifth token ends the sequence"
    usage = answer.json["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert answer.headers[b"x-compute-type"] == b"gpu+optimized"
    assert answer.headers[b"x-generated-tokens"] == b"5"
    assert int(answer.headers[b"x-inference-time"]) > 0
    assert int(answer.headers[b"x-total-time"]) >= int(answer.headers[b"x-inference-time"])


def test_a_chat_stream_has_a_role_in_every_delta_and_an_event_for_each_token() -> None:
    answer = ask(CHAT, a_chat(out_len=4, stream=True, stream_options={"include_usage": True}))

    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert len(chunks) == 4
    assert {chunk["choices"][0]["delta"]["role"] for chunk in chunks} == {"assistant"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 3 + ["stop"]
    assert chunks[-1]["choices"][0]["delta"]["content"] == ""
    assert {chunk["id"] for chunk in chunks} == {""}
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert answer.headers[b"x-accel-buffering"] == b"no"


def test_without_include_usage_a_chat_stream_tells_none() -> None:
    *chunks, _ = ask(CHAT, a_chat(out_len=3, stream=True)).events

    assert len(chunks) == 3


def test_a_limit_and_a_stop_sequence_are_told_apart() -> None:
    whole = ask(CHAT, a_chat(out_len=50, max_tokens=10)).json
    word = whole["choices"][0]["message"]["content"].split()[3]
    stopped = ask(CHAT, a_chat(out_len=50, max_tokens=10, stop=[word])).json

    assert whole["choices"][0]["finish_reason"] == "length"
    assert stopped["choices"][0]["finish_reason"] == "stop_sequence"
    assert stopped["choices"][0]["message"]["content"].split()[-1] == word
    assert stopped["usage"]["completion_tokens"] <= 4


def test_any_model_name_will_do_and_is_echoed() -> None:
    assert ask(CHAT, a_chat(model="no-such-adapter")).json["model"] == "no-such-adapter"
    body = {"model": "nope", "prompt": "hi", "max_tokens": 2}
    assert ask(COMPLETIONS, body).json["model"] == "m1"


def test_a_required_tool_is_called_whole_and_streamed() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    body = a_chat(out_len=4, tools=tools, tool_choice="required")
    [tool_call] = ask(CHAT, body).json["choices"][0]["message"]["tool_calls"]
    *chunks, _ = ask(CHAT, {**body, "stream": True}).events

    assert tool_call["function"]["name"] == "look_up"
    assert "text" in orjson.loads(tool_call["function"]["arguments"])
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert [piece["function"]["name"] for piece in calls] == ["look_up", None, None, None]
    arguments = "".join(piece["function"]["arguments"] for piece in calls)
    assert arguments == tool_call["function"]["arguments"]


# -- completions and TGI's own API


def test_a_completion_stream_has_an_empty_reason_until_the_last_chunk_with_usage() -> None:
    body = {"prompt": "hi", "stream": True, "vllm_xargs": {"out_len": 3}}
    *chunks, done = ask(COMPLETIONS, body).events

    assert done == "[DONE]"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == ["", "", "eos_token"]
    assert ["usage" in chunk for chunk in chunks] == [False, False, True]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_each_of_several_prompts_streams_with_usage_of_its_own() -> None:
    body = {"prompt": ["hi", "longer than hi"], "stream": True, "max_tokens": 3}
    *chunks, _ = ask(COMPLETIONS, body).events

    told = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in chunks if "usage" in chunk}
    assert [told[index]["completion_tokens"] for index in (0, 1)] == [3, 3]
    assert told[0]["prompt_tokens"] < told[1]["prompt_tokens"]


def test_generate_answers_with_text_and_with_details_on_demand() -> None:
    bare = ask(GENERATE, generate(max_new_tokens=3)).json
    full = ask(GENERATE, generate(max_new_tokens=3, details=True, return_full_text=True)).json

    assert set(bare) == {"generated_text"}
    assert full["generated_text"] == "hello" + bare["generated_text"]
    assert full["details"]["finish_reason"] == "length"
    assert full["details"]["generated_tokens"] == len(full["details"]["tokens"]) == 3


def test_a_generate_stream_ends_with_the_text_and_without_an_end_mark() -> None:
    events = ask(STREAM, generate(max_new_tokens=3, details=True)).events

    assert [event["index"] for event in events] == [1, 2, 3]
    assert [event["generated_text"] for event in events[:-1]] == [None, None]
    text = "".join(event["token"]["text"] for event in events)
    assert events[-1]["generated_text"] == text
    assert events[-1]["details"]["finish_reason"] == "length"


def test_the_compatible_route_answers_with_a_list_or_a_stream() -> None:
    [only] = ask("/", generate(max_new_tokens=2)).json
    streamed = ask("/", {**generate(max_new_tokens=2), "stream": True}).events

    assert streamed[-1]["generated_text"] == only["generated_text"]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"inputs": "hi", "parameters": {"max_new_tokens": 2}}, 0),
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, "choices"),
        ({"prompt": "hi", "max_tokens": 2}, "choices"),
    ],
)
def test_invocations_takes_every_form(body: object, key: Any) -> None:
    assert ask("/invocations", body).json[key]


# -- errors


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"temperature": -1}, "`temperature` must be strictly positive"),
        ({"max_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"max_tokens": 1000}, "`inputs` tokens + `max_new_tokens` must be <= 1000. Given: "),
        (
            {"messages": [{"role": "user", "content": "x" * 8000}]},
            "`inputs` must have less than 999 tokens. Given: ",
        ),
    ],
)
def test_a_validation_error_is_a_422_or_on_a_stream_an_event_in_a_200(
    change: dict[str, Any], text: str
) -> None:
    whole = ask(CHAT, a_chat(**change), profile=SMALL)
    streamed = ask(CHAT, a_chat(stream=True, **change), profile=SMALL)

    assert whole.status == 422
    assert whole.json["error_type"] == "validation"
    assert whole.json["error"].startswith(f"Input validation error: {text}")
    assert streamed.status == 200
    error, done = streamed.events
    assert error == {"error": {"message": whole.json["error"], "http_status_code": 422}}
    assert done == "[DONE]"


def test_on_its_own_stream_an_error_keeps_its_kind_and_nothing_follows() -> None:
    [error] = ask(STREAM, generate(top_p=1.0)).events

    assert error["error_type"] == "validation"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stop": "x"}, 'stop: invalid type: string "x", expected a sequence'),
        ({"stream_options": None}, "stream_options: invalid type: null"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "duplicate field `max_tokens`"),
        ({"logit_bias": {"1": 2}}, "logit_bias: invalid type: map, expected a sequence"),
        ({"response_format": {"type": "text"}}, "response_format: unknown variant `text`"),
        ({"response_format": {"type": "json_object"}}, "missing field `value`"),
        ({"max_tokens": -1}, "max_tokens: invalid value: integer `-1`, expected u32"),
        ({"stream": None}, "stream: invalid type: null, expected a boolean"),
    ],
)
def test_what_vllm_takes_and_tgi_does_not_is_refused_in_plain_text(
    change: dict[str, Any], why: str
) -> None:
    answer = ask(CHAT, a_chat(**change))

    assert answer.status == 422
    assert answer.headers[b"content-type"].startswith(b"text/plain")
    assert why in answer.body.decode()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": [1, 2, 3]}, 422),
        ({"prompt": ["a", "b", "c", "d", "e"]}, 422),
        ({"prompt": "a", "suffix": "b"}, 422),
        (b'{"prompt": ', 400),
        ({}, 422),
    ],
)
def test_completions_refuse_token_ids_many_prompts_and_broken_bodies(
    body: object, status: int
) -> None:
    assert ask(COMPLETIONS, body).status == status


def test_a_body_must_say_that_it_is_json() -> None:
    assert ask(CHAT, a_chat(), headers={"content-type": "text/plain"}).status == 415


def test_a_key_guards_what_works_but_not_what_informs() -> None:
    right = {"authorization": "bearer SECRET"}

    refused = ask(CHAT, a_chat(), api_key="secret")
    assert (refused.status, refused.body) == (401, b"")
    assert ask(CHAT, a_chat(), headers=right, api_key="secret").status == 200
    assert get("/info", api_key="secret").status == 200


def test_a_full_engine_says_429_or_on_a_stream_an_event_with_422() -> None:
    async def main() -> tuple[Answer, Answer, Answer, bytes]:
        engine = server(max_num_queued_reqs=1)
        json = {"content-type": "application/json"}
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(call(engine, CHAT, a_chat(out_len=20), headers=json))
            await asyncio.sleep(0.001)
            whole = await call(engine, CHAT, a_chat(), headers=json)
            streamed = await call(engine, CHAT, a_chat(stream=True), headers=json)
        page = await call(engine, "/metrics", method="GET")
        return first.result(), whole, streamed, page.body

    first, whole, streamed, page = run_in_virtual_time(main())
    assert first.status == 200
    assert whole.status == 429
    assert whole.json == {"error": "Model is overloaded", "error_type": "overloaded"}
    assert streamed.status == 200
    assert streamed.events[0]["error"]["http_status_code"] == 422
    assert b'tgi_request_failure{err="overloaded"} 2' in page


# -- the scheduler


def test_room_for_the_whole_answer_is_taken_in_advance() -> None:
    """700 tokens reserved and 500 wanted do not fit in 1,000, however short the answers are."""

    async def main() -> tuple[Answer, Answer]:
        engine = server(profile=SMALL)
        json = {"content-type": "application/json"}
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(
                call(engine, CHAT, a_chat(out_len=30, max_tokens=700), headers=json)
            )
            small = tasks.create_task(
                call(engine, CHAT, a_chat("ho", out_len=3, max_tokens=500), headers=json)
            )
        return large.result(), small.result()

    large, small = run_in_virtual_time(main())
    assert large.ended_at is not None
    assert small.ended_at is not None
    assert small.ended_at > large.ended_at
    assert int(small.headers[b"x-queue-time"]) > 200


def test_a_silent_stream_is_kept_alive_by_empty_comments() -> None:
    async def main() -> bytes:
        engine = server(profile=SMALL, allow_faults=True)
        await call(engine, "/emulator/faults", {"stall": True})
        json = {"content-type": "application/json"}
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(
                call(engine, CHAT, a_chat(out_len=2, stream=True), headers=json)
            )
            await asyncio.sleep(40)
            await call(engine, "/emulator/faults", {})
        return task.result().body

    body = run_in_virtual_time(main())
    assert body.startswith(b":\n\n:\n\ndata: ")
    assert read_events(body.removeprefix(b":\n\n:\n\n"))[-1] == "[DONE]"


def test_a_crash_fails_the_batch_with_424_or_an_event() -> None:
    async def main() -> tuple[Answer, Answer]:
        engine = server(allow_faults=True)
        json = {"content-type": "application/json"}
        async with asyncio.TaskGroup() as tasks:
            whole = tasks.create_task(call(engine, CHAT, a_chat(out_len=500), headers=json))
            body = a_chat(out_len=500, stream=True)
            streamed = tasks.create_task(call(engine, CHAT, body, headers=json))
            await asyncio.sleep(1)
            await call(engine, "/emulator/faults", {"crash": True})
        return whole.result(), streamed.result()

    whole, streamed = run_in_virtual_time(main())
    assert (whole.status, whole.json["error_type"]) == (424, "generation")
    assert "error" in streamed.events[-2]


# -- what informs


def get(path: str, **changes: Any) -> Answer:
    """Ask a fresh engine for a page."""

    async def main() -> Answer:
        return await call(server(**changes), path, method="GET")

    return run_in_virtual_time(main())


def test_info_tells_the_limits() -> None:
    info = get("/info", profile=SMALL).json

    assert info["model_id"] == "m1"
    assert info["max_concurrent_requests"] == 128
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (999, 1000)
    assert info["version"] == "3.3.6-dev0"


def test_models_lists_the_one_there_is() -> None:
    [model] = get("/v1/models").json["data"]

    assert model == {"id": "m1", "object": "model", "created": 0, "owned_by": "m1"}


def test_metrics_tell_the_queue_and_the_budget() -> None:
    page = get("/metrics", profile=SMALL).body.decode().splitlines()

    assert "tgi_queue_size 0" in page
    assert "tgi_batch_current_size 0" in page
    assert "tgi_batch_max_total_tokens 1000" in page
    assert 'tgi_request_duration_bucket{le="+Inf"} 0.0' in page


@pytest.mark.parametrize("path", ["/", "/health", "/ping"])
def test_health_is_an_empty_200(path: str) -> None:
    answer = get(path)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/generate", 405)])
def test_elsewhere_there_is_nothing(path: str, status: int) -> None:
    answer = get(path)
    assert (answer.status, answer.body) == (status, b"")


def test_a_text_is_cut_into_tokens() -> None:
    tokens = ask("/tokenize", {"inputs": "hello"}).json
    chat = ask("/chat_tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json

    assert [token["text"] for token in tokens] == ["hell", "o"]
    assert tokens[1] == {"id": 1, "text": "o", "start": 4, "stop": 5}
    assert "".join(token["text"] for token in chat["tokenize_response"]) == chat["templated_text"]
