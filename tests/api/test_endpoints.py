"""Every path of the engines' API: to whom it goes, what of it passes, how it is counted."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.api.endpoints import ENDPOINTS, Endpoint, is_id, with_id
from gateway.core.outcomes import FailureKind
from gateway.keys_file import hash_of
from tests.api.harness import Json, Reply, Wire, a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    MODEL,
    Exchange,
    Script,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio

EMBEDDING = json.dumps(
    {
        "object": "list",
        "model": MODEL,
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
).encode()
RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "error": None,
    "model": MODEL,
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}],
    "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 4},
}

READING: dict[str, Json] = {
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float"},
    "/v2/embed": {"texts": ["a"], "input_type": "search_query"},
    "/pooling": {"input": "a"},
    "/classify": {"input": ["a"]},
    "/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/score": {"queries": "a", "documents": "b"},
    "/rerank": {"query": "a", "documents": ["b", {"text": "c"}]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"prompt": "a b c"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


def event(kind: str, **fields: object) -> bytes:
    """One named event."""
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


@pytest.mark.parametrize("path", READING)
async def test_what_only_reads_passes_and_is_counted(path: str) -> None:
    """Case 153."""
    body: Json = {"z": 1, "model": MODEL, **READING[path], "vendor": {"k": 2.50}}
    async with a_fake_backend(answers(EMBEDDING)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body, path)

        assert (reply.status, reply.body) == (200, EMBEDDING)
        (seen,) = engine.calls
        assert (seen.target, seen.body) == (path, json.dumps(body).encode())
        assert gw.settled() == {("completed", ""): 1}
        assert gw.tokens()[1] == 0


async def test_lists_pass_as_they_are() -> None:
    async with a_fake_backend(answers(b"[[1, 2]]")) as engine, a_gateway(engine) as gw:
        reply = await gw.post({"model": MODEL, "inputs": "a"}, "/tokenize")

        assert (reply.status, reply.body) == (200, b"[[1, 2]]")


async def test_an_alias_is_called_by_its_name_everywhere() -> None:
    async with (
        a_fake_backend(answers(EMBEDDING)) as engine,
        a_gateway(engine, models={"emb": {"target": MODEL}}) as gw,
    ):
        reply = await gw.post({"model": "emb", "input": "a"}, "/v1/embeddings")

        assert engine.calls[0].json["model"] == MODEL
        assert reply.json["model"] == "emb"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"model": MODEL}, "input"),
        ("/v1/embeddings", {"model": MODEL, "input": None}, "input"),
        ("/rerank", {"model": MODEL, "documents": []}, "query"),
        ("/v1/responses", {"model": MODEL}, "input"),
        ("/v1/messages", {"model": MODEL, "messages": []}, "messages"),
        ("/v1/embeddings", {"model": ["m1"], "input": "a"}, "model"),
        ("/tokenize", {"model": "nope", "prompt": "a"}, "model"),
    ],
)
async def test_what_is_missing_is_named(path: str, body: Json, param: str) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body, path)

        assert reply.status in (400, 404)
        error = reply.json["error"]
        assert isinstance(error, dict)
        assert error["param"] == param
        assert engine.calls == []


async def test_who_names_no_model_means_the_only_one() -> None:
    async with a_fake_backend(answers(EMBEDDING)) as engine, a_gateway(engine) as gw:
        assert (await gw.post({"input": "a"}, "/v1/embeddings")).status == 200
        assert engine.calls[0].json == {"input": "a"}

        both = a_gateway(engine, engine, backends=[{"model": "m1"}, {"model": "m2"}])
        async with both as two:
            reply = await two.post({"input": "a"}, "/v1/embeddings")
            assert (reply.status, reply.error["param"]) == (400, "model")


# Who offers what


async def test_a_call_goes_where_its_path_is_offered() -> None:
    async with (
        a_fake_backend(answers(EMBEDDING)) as lists,
        a_fake_backend(plain) as chats,
        a_gateway(
            lists,
            chats,
            backends=[{"endpoints": ["/v1/embeddings"]}, {"endpoints": ["/v1/chat/completions"]}],
        ) as gw,
    ):
        for _ in range(3):
            assert (await gw.post({"model": MODEL, "input": "a"}, "/v1/embeddings")).status == 200
            assert (await gw.post(chat())).status == 200

        assert {seen.target for seen in lists.calls} == {"/v1/embeddings"}
        assert {seen.target for seen in chats.calls} == {"/v1/chat/completions"}
        reply = await gw.post({"model": MODEL, "query": "a"}, "/rerank")
        assert (reply.status, reply.error["code"]) == (404, "not_supported")
        assert reply.error["message"] == f"No backend of the model `{MODEL}` offers /rerank."
        lists.script = answers(EMBEDDING)


async def test_an_engines_own_list_is_believed() -> None:
    async with a_fake_backend(answers(EMBEDDING)) as engine:
        engine.paths = ("/v1/chat/completions", "/v1/responses", "/v1/responses/{response_id}")
        async with a_gateway(engine) as gw:
            refused = await gw.post({"model": MODEL, "input": "a"}, "/v1/embeddings")
            assert (refused.status, refused.error["code"]) == (404, "not_supported")
            engine.script = answers(json.dumps(RESPONSE).encode())
            assert (await gw.request("GET", "/v1/responses/resp_9")).status == 200
            # Nothing lists it, so nobody is asked.
            assert (await gw.post(b"", "/v1/responses/resp_9/cancel")).status == 404


async def test_a_list_of_something_else_is_not() -> None:
    async with a_fake_backend(plain) as engine:
        engine.paths = ("/health", "/ui")
        async with a_gateway(engine) as gw:
            assert (await gw.post(chat())).status == 200


@pytest.mark.parametrize("said", ["Not Found", "Method Not Allowed"])
async def test_an_engine_without_the_route_leaves_the_call_to_another(said: str) -> None:
    lacks = answers(json.dumps({"detail": said}).encode(), "404 Not Found")
    async with (
        a_fake_backend(lacks) as without,
        a_fake_backend(answers(EMBEDDING)) as having,
        a_gateway(without, having) as gw,
    ):
        replies = [
            await gw.post({"model": MODEL, "input": "a"}, "/v1/embeddings") for _ in range(4)
        ]

        assert [reply.status for reply in replies] == [200] * 4
        assert len(having.calls) == 4


async def test_no_engine_with_the_route_is_a_404_that_says_so() -> None:
    lacks = answers(b'{"detail": "Not Found"}', "404 Not Found")
    async with a_fake_backend(lacks) as engine, a_gateway(engine) as gw:
        reply = await gw.post({"model": MODEL, "input": "a"}, "/v1/embeddings")

        assert (reply.status, reply.error["code"]) == (404, "not_supported")
        assert gw.settled() == {("invalid", FailureKind.UNSUPPORTED.value): 1}


async def test_tgi_is_asked_only_for_what_it_has() -> None:
    details = {"generated_tokens": 3, "finish_reason": "length"}
    generated = json.dumps({"generated_text": "hello", "details": details}).encode()
    async with (
        a_fake_backend(answers(generated)) as tgi,
        a_fake_backend(answers(EMBEDDING)) as vllm,
        a_gateway(tgi, vllm, backends=[{"kind": "tgi", "model": "t1"}, {}]) as gw,
    ):
        body = {"inputs": "a", "parameters": {"max_new_tokens": 3}}
        whole = await gw.post(body, "/generate")
        assert (whole.status, whole.body) == (200, generated)
        assert tgi.calls[0].json == body
        assert gw.gateway.counters.tokens["t1", "output"] == 3

        tgi.script = streams(
            b'data:{"index":1,"token":{"text":"hel"},"generated_text":null,"details":null}\n\n',
            b'data:{"index":2,"token":{"text":"lo"},"generated_text":"hello","details":null}\n\n',
        )
        stream = await gw.post(body, "/generate_stream")
        assert len(stream.events) == 2
        assert gw.gateway.counters.tokens["t1", "output"] == 5

        tgi.script = answers(b'{"model_id": "x"}')
        info = await gw.request("GET", "/info")
        assert (info.status, info.json) == (200, {"model_id": "x"})
        assert vllm.calls == []
        assert (await gw.post({"model": "t1", "input": "a"}, "/v1/embeddings")).status == 404


async def test_a_tgi_stream_without_its_last_token_is_broken() -> None:
    script = streams(b'data:{"token":{"text":"hel"},"generated_text":null}\n\n')
    async with (
        a_fake_backend(script) as tgi,
        a_gateway(tgi, backends=[{"kind": "tgi", "model": "t1"}]) as gw,
    ):
        reply = await gw.post({"inputs": "a"}, "/generate_stream")

        assert json.loads(reply.events[-1])["error"]["code"] == "reset"
        gw.canary = False


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_deep_to_be_mended_is_the_engines_fault(stream: bool) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    text = b'{"choices":[{"index":0,"delta":{"content":"a"},"deep":' + deep + b"}]}"
    script = streams(b"data: %b\n\n" % text) if stream else answers(text)
    async with a_fake_backend(script) as tgi, a_gateway(tgi, backends=[{"kind": "tgi"}]) as gw:
        reply = await gw.post(chat(stream=stream))

        assert (reply.status, reply.error["code"]) == (502, "bad_answer")


# /v1/responses


async def test_a_response_is_passed_and_counted() -> None:
    script = answers(json.dumps(RESPONSE).encode())
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(
            {"model": MODEL, "input": "hi", "max_output_tokens": 5}, "/v1/responses"
        )

        assert reply.json == RESPONSE
        assert engine.calls[0].json == {"model": MODEL, "input": "hi", "max_output_tokens": 5}
        assert gw.tokens()[1] == 4


RESPONSE_EVENTS = [
    event("response.created", response={**RESPONSE, "status": "in_progress", "usage": None}),
    event("response.output_text.delta", delta="he"),
    event("response.output_text.delta", delta="llo"),
]


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        ("completed", ("completed", "")),
        ("incomplete", ("completed", "")),
        ("failed", ("failed", "server_error")),
    ],
)
async def test_a_streamed_response_says_itself_how_it_ended(
    status: str, settled: tuple[str, str]
) -> None:
    """Case 152."""
    last = event(f"response.{status}", response={**RESPONSE, "status": status})
    async with (
        a_fake_backend(streams(*RESPONSE_EVENTS, last)) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post({"model": MODEL, "input": "hi", "stream": True}, "/v1/responses")

        assert reply.body == b"".join(RESPONSE_EVENTS) + last
        assert gw.settled() == {settled: 1}
        assert gw.tokens()[1] == (0 if status == "failed" else 4)


@pytest.mark.parametrize("ending", [b"", event("error", message="boom", code=500)])
async def test_a_streamed_response_that_breaks_gets_an_error_event(ending: bytes) -> None:
    async with (
        a_fake_backend(streams(*RESPONSE_EVENTS, *([ending] if ending else []))) as engine,
        a_gateway(engine) as gw,
    ):
        reply = await gw.post({"model": MODEL, "input": "hi", "stream": True}, "/v1/responses")

        assert reply.body.startswith(b"".join(RESPONSE_EVENTS))
        assert "error" in json.loads(reply.events[-1])
        assert [outcome for outcome, _ in gw.settled()] == ["failed"]


async def test_what_a_backend_keeps_is_asked_of_that_backend() -> None:
    def keeps(name: str) -> Script:
        async def script(exchange: Exchange) -> None:
            await exchange.answer(json.dumps({**RESPONSE, "id": f"resp_{name}"}).encode())

        return script

    async with (
        a_fake_backend(keeps("a")) as first,
        a_fake_backend(keeps("b")) as second,
        a_gateway(first, second) as gw,
    ):
        made = {
            str((await gw.post({"model": MODEL, "input": "hi"}, "/v1/responses")).json["id"])
            for _ in range(4)
        }
        assert made == {"resp_a", "resp_b"}
        first.calls.clear()
        second.calls.clear()
        for _ in range(3):
            await gw.request("GET", "/v1/responses/resp_a?include=x")
            await gw.request("POST", "/v1/responses/resp_b/cancel")
            await gw.post(
                {"model": MODEL, "input": "more", "previous_response_id": "resp_a"},
                "/v1/responses",
            )

        targets = [seen.target for seen in first.calls]
        assert targets == ["/v1/responses/resp_a?include=x", "/v1/responses"] * 3
        assert {seen.target for seen in second.calls} == {"/v1/responses/resp_b/cancel"}
        unknown = await gw.request("GET", "/v1/responses/resp_c")
        assert (unknown.status, unknown.error["code"]) == (404, "not_found")


async def test_what_is_kept_for_one_tenant_is_nobody_elses(tmp_path: Path) -> None:
    keys = {name: f"sk-hexsage-{name * 40}" for name in "ab"}
    entries = [
        {"name": name, "tenant": name, "sha256": hash_of(key.encode())}
        for name, key in keys.items()
    ]
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps({"keys": entries}))
    script = answers(json.dumps(RESPONSE).encode())
    async with a_fake_backend(script) as engine, a_gateway(engine, keys_file=file) as gw:
        gw.canary = False
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in keys.values())
        await gw.post({"model": MODEL, "input": "hi"}, "/v1/responses", mine)
        go_on: Json = {"model": MODEL, "input": "hi", "previous_response_id": "resp_1"}
        path = "/v1/responses/resp_1"

        assert (await gw.request("GET", path, headers=mine)).status == 200
        assert (await gw.post(go_on, "/v1/responses", mine)).status == 200
        before = len(engine.calls)
        assert (await gw.request("GET", path, headers=theirs)).status == 404
        assert (await gw.post(go_on, "/v1/responses", theirs)).status == 404
        assert (await gw.request("GET", path + "/unknown", headers=theirs)).status == 404
        assert (await gw.request("GET", "/v1/responses/resp_2", headers=theirs)).status == 404
        assert len(engine.calls) == before


@pytest.mark.parametrize("identity", ["..", "a%2Fb", "a%3Fb", "x" * 300])
async def test_an_id_is_no_path(identity: str) -> None:
    """Case 200."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.request("GET", f"/v1/responses/{identity}")).status == 404
        assert engine.calls == []


# /v1/messages


async def test_a_message_is_passed_and_counted() -> None:
    script = answers(json.dumps(MESSAGE).encode())
    body: Json = {"model": MODEL, "max_tokens": 9, "system": "s", "messages": chat()["messages"]}
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body, "/v1/messages", {"anthropic-version": "2023-06-01"})

        assert reply.json == MESSAGE
        assert engine.calls[0].json == body
        assert gw.tokens()[1] == 4


MESSAGE_EVENTS = [
    event("message_start", message={**MESSAGE, "usage": {"input_tokens": 9, "output_tokens": 1}}),
    event("content_block_start", index=0),
    event("ping"),
    event("content_block_delta", delta={"type": "text_delta", "text": "hello"}),
    event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 4}),
    event("message_stop"),
]


async def test_a_streamed_message_ends_with_its_stop() -> None:
    body: Json = {"model": MODEL, "max_tokens": 9, "messages": chat()["messages"], "stream": True}
    async with a_fake_backend(streams(*MESSAGE_EVENTS)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body, "/v1/messages")
        assert reply.body == b"".join(MESSAGE_EVENTS)
        assert gw.tokens()[1] == 4

        engine.script = streams(*MESSAGE_EVENTS[:4], ends="reset")
        broken = await gw.post(body, "/v1/messages")
        last = broken.body.removeprefix(b"".join(MESSAGE_EVENTS[:4]))
        # Anthropic's clients go by the event's name and the object's type.
        assert last.startswith(b"event: error\ndata: ")
        assert json.loads(last.partition(b"data: ")[2])["type"] == "error"

        engine.script = streams(event("error", error={"type": "overloaded_error", "message": "m"}))
        refused = await gw.post(body, "/v1/messages")
        assert refused.status == 429
        assert refused.json["type"] == "error"


# What is passed through


async def test_nothing_else_is_passed_on_unless_it_is_listed() -> None:
    """Cases 25 and 195."""
    sound = bytes(range(256)) * 1200 + b"\n\n"

    async def speaks(exchange: Exchange) -> None:
        await exchange.answer(sound, content_type="audio/wav")

    speech: Json = {"model": MODEL, "input": "hello", "voice": "x"}
    hidden = ("/sleep", "/v1/load_lora_adapter", "/invocations", "/collective_rpc", "/load")
    async with a_fake_backend(speaks) as engine:
        async with a_gateway(engine) as gw:
            assert (await gw.post(speech, "/v1/audio/speech")).status == 404
            for path in hidden:
                assert (await gw.post(speech, path)).status in (404, 405)
            assert engine.calls == []
        async with a_gateway(engine, passthrough=["/v1/audio/speech", "/sleep"]) as gw:
            engine.script = speaks
            reply = await gw.post(speech, "/v1/audio/speech?x=1")
            assert (reply.status, reply.headers["content-type"]) == (200, "audio/wav")
            assert reply.body == sound
            assert engine.calls[-1].target == "/v1/audio/speech?x=1"
            assert (await gw.request("GET", "/sleep")).status == 200
            assert (await gw.post(speech, "/wake_up")).status == 404


async def test_bytes_that_break_off_are_not_ended_as_if_they_were_whole() -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 99\r\n\r\nabc"
        )
        await exchange.pause(0.05)
        exchange.reset()

    async with (
        a_fake_backend(breaks) as engine,
        a_gateway(engine, passthrough=["/v1/audio/speech"]) as gw,
    ):
        wire = await gw.dial({"model": MODEL, "input": "a"}, "/v1/audio/speech")
        with suppress(ConnectionResetError):
            assert not (await wire.read_all()).endswith(b"0\r\n\r\n")
        assert gw.settled() == {("failed", "reset"): 1}


# All of them alike

GENERATING: dict[str, Json] = {
    "/v1/chat/completions": chat(),
    "/v1/completions": {"model": MODEL, "prompt": "a"},
    "/v1/responses": {"model": MODEL, "input": "a"},
    "/v1/messages": {"model": MODEL, "messages": chat()["messages"]},
}
LEAVES: list[Callable[[Wire], None]] = [Wire.reset, Wire.close]


@pytest.mark.parametrize("path", [*GENERATING, "/v1/embeddings", "/rerank", "/tokenize"])
async def test_leaving_stops_the_engine_on_every_route(path: str) -> None:
    """Cases 34 and 38."""
    body = {"model": MODEL, **GENERATING.get(path, READING.get(path, {}))}
    async with a_fake_backend(after(8)) as engine, a_gateway(engine) as gw:
        wire = await gw.dial(body, path)
        await gw.until(lambda: len(engine.calls) == 1)
        wire.reset()

        await gw.until(lambda: gw.gateway.driver.in_flight == 0, within_s=1.0)
        await gw.until(lambda: engine.running == 0, within_s=1.0)
        assert gw.settled() == {("abandoned", ""): 1}


@pytest.mark.parametrize(
    ("path", "events"),
    [
        ("/v1/responses", [RESPONSE_EVENTS[0], *[RESPONSE_EVENTS[1]] * 200]),
        ("/v1/messages", [MESSAGE_EVENTS[0], *[MESSAGE_EVENTS[3]] * 200]),
    ],
)
async def test_leaving_a_stream_stops_it_on_every_route(path: str, events: list[bytes]) -> None:
    """Case 38."""
    script = streams(*events, gap_s=0.05)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        wire = await gw.dial({**GENERATING[path], "stream": True}, path)
        for _ in range(3):
            await wire.read_until(b"\n\n")
        wire.reset()

        await gw.until(lambda: engine.running == 0, within_s=1.0)
        await gw.until(lambda: gw.settled() == {("abandoned", ""): 1})


@pytest.mark.parametrize("path", [*GENERATING, *READING])
async def test_errors_have_one_shape_on_every_route(path: str) -> None:
    body = {"model": MODEL, **GENERATING.get(path, READING.get(path, {}))}
    refuses = answers(b'{"error": "text", "error_type": "validation"}', "422 No")
    async with a_fake_backend(refuses) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body, path)

        assert reply.status == 422
        error = reply.json["error"]
        assert isinstance(error, dict)
        assert error["message"] == "text"
        assert len(engine.calls) == 1


async def test_a_call_that_only_reads_is_tried_elsewhere_too() -> None:
    full = answers(b'{"error": {"message": "full", "code": 503}}', "503 Full")
    async with (
        a_fake_backend(full) as first,
        a_fake_backend(answers(EMBEDDING)) as second,
        a_gateway(first, second) as gw,
    ):

        async def embed() -> Reply:
            return await gw.post({"model": MODEL, "input": "a"}, "/v1/embeddings")

        replies = await asyncio.gather(*[embed() for _ in range(6)])
        assert {reply.status for reply in replies} == {200}


async def test_a_session_stays_where_its_prompt_is_cached() -> None:
    """Case 170: the same session goes to the same backend; the header is not passed on."""
    slow = streams(frame("a"), frame("", "stop"), DONE)
    async with (
        a_fake_backend(slow) as first,
        a_fake_backend(slow) as second,
        a_gateway(first, second, policy={"name": "hexsage"}) as gw,
    ):
        for turn in range(6):
            # Nothing in the text tells that these belong together.
            body = chat(f"{turn}" * 4000, stream=True)
            assert (await gw.post(body, headers={"X-Session-ID": "s-1"})).status == 200

        assert {len(first.calls), len(second.calls)} == {0, 6}
        assert all("x-session-id" not in seen.headers for seen in first.calls + second.calls)


async def test_paths_are_in_the_document() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine, passthrough=["/v1/x"]) as gw:
        document = (await gw.request("GET", "/openapi.json")).json

        paths = document["paths"]
        assert isinstance(paths, dict)
        assert set(ENDPOINTS) | {"/v1/models", "/v1/x"} <= set(paths)


def test_ids_are_found_in_paths() -> None:
    found = with_id("/v1/responses/resp_1/cancel")
    assert found is not None
    endpoint, kept_id = found
    assert (endpoint.with_id(kept_id), kept_id) == ("/v1/responses/resp_1/cancel", "resp_1")
    assert with_id("/v1/responses") is None
    assert with_id("/v1/responses/a/b/c") is None
    assert (is_id("resp_1"), is_id(".."), is_id("a/b"), is_id("")) == (True, False, False, False)
    assert Endpoint(path="/x").with_id("") == "/x"


async def test_one_record_a_call_whatever_it_was() -> None:
    """Case 57."""
    async with a_fake_backend(answers(EMBEDDING)) as engine, a_gateway(engine) as gw:
        for path, body in READING.items():
            assert (await gw.post({"model": MODEL, **body}, path)).status == 200

        assert gw.settled() == {("completed", ""): len(READING)}
