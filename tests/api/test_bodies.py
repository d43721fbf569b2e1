"""Every odd body has one defined answer, and nothing about it reaches an engine or stays behind."""

import json

import pytest

from tests.api.harness import Json, a_gateway, chat
from tests.backends.fake_backend import MODEL, a_fake_backend, plain

pytestmark = pytest.mark.anyio
GOOD = json.dumps(chat()).encode()


NO_OBJECTS_AT_ALL = [
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"true",
    b"{",
    b'{"model":',
    b"\xff",
    b"\xef\xbb\xbf" + GOOD,
    GOOD.decode().encode("utf-16"),
    b"",
    b" " * 10,
    b'{"model":"m1","messages":[],}',
    b"{'model':'m1'}",
    b'{"model":"m1","messages":[{"role":"user","content":"a\nb"}]}',
    GOOD.replace(b'"hi"', b'"\\ud83d"'),
    GOOD.replace(b'"hi"', b"NaN"),
    GOOD.replace(b'"hi"', b"Infinity"),
    b"[" * 2000,
    b"[" * 100_000,
    b'{"a":' * 50_000,
    GOOD.replace(b'"hi"', b"[" * 2000 + b"]" * 2000),
]


async def test_what_is_no_json_object_is_a_400() -> None:
    """Cases 119 to 124."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for body in NO_OBJECTS_AT_ALL:
            for kind in ("application/json", "text/plain", "application/json; charset=latin-1"):
                reply = await gw.post(body, headers={"content-type": kind})
                assert (reply.status, reply.error["code"]) == (400, "invalid_json"), body[:40]
                assert len(reply.body) < 500
                assert "Traceback" not in str(reply.error)
        assert engine.calls == []


NO_LISTS: list[object] = [[], None, "hi", {}]
NO_OBJECTS: list[object] = [[], "x", 1]


def without(name: str) -> Json:
    return {key: value for key, value in chat().items() if key != name}


WRONG: list[tuple[Json, int, str]] = [
    ({}, 400, "model"),
    (without("model"), 400, "model"),
    (without("messages"), 400, "messages"),
    *[
        ({**chat(), "model": model}, status, "model")
        for model, status in [
            (["m1"], 400),
            ({"a": 1}, 400),
            (5, 400),
            (None, 400),
            ("", 400),
            (" ", 400),
            (True, 400),
            ("M1", 404),
            ("m1\n", 404),
            ("../../etc/passwd", 404),
            ("http://evil/x", 404),
            ("x" * 1_000_000, 404),
        ]
    ],
    *[({**chat(), "messages": messages}, 400, "messages") for messages in NO_LISTS],
    (chat(stream="yes"), 400, "stream"),
    (chat(stream=1), 400, "stream"),
    *[(chat(stream=True, stream_options=o), 400, "stream_options") for o in NO_OBJECTS],
    *[
        (chat(priority=priority), 400, "priority")
        for priority in ("high", 1.5, True, 2**31, 10**18)
    ],
    (chat(metadata={"workflow-id": [1]}), 400, "metadata.workflow-id"),
]


async def test_a_wrong_field_is_named() -> None:
    """Cases 46, 71, 126, 127, 133 and 200."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for body, status, param in WRONG:
            reply = await gw.post(body)

            assert (reply.status, reply.error["param"]) == (status, param), str(body)[:200]
            assert reply.headers["x-should-retry"] == "false"
            assert len(reply.body) < 500
        assert engine.calls == []
        assert b"etc/passwd" not in (await gw.request("GET", "/metrics")).body


@pytest.mark.parametrize("prompt", [None, 5, True, {}])
async def test_a_completion_needs_a_prompt(prompt: object) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post({"model": MODEL, "prompt": prompt}, path="/v1/completions")

        assert (reply.status, reply.error["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-workflow-id", "w" * 257),
        ("x-workflow-deadline-ms", "soon"),
        ("x-workflow-deadline-ms", "0"),
        ("x-workflow-deadline-ms", "-5"),
        ("x-workflow-deadline-ms", "9" * 14),
        ("x-request-deadline-ms", "1.5"),
        ("x-expected-output-tokens", "many"),
    ],
)
@pytest.mark.parametrize("others", [{}, {"x-workflow-id": "w"}], ids=["alone", "with an id"])
async def test_a_wrong_header_is_named(header: str, value: str, others: dict[str, str]) -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(), headers={**others, header: value})

        assert (reply.status, reply.error["param"]) == (400, header)


MAX_TOKENS: list[Json] = [{"max_tokens": cap} for cap in (None, 0, -1, 1, 10**9, 10.0, "8", True)]
FOR_ENGINES_TO_JUDGE: list[Json] = [
    {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": ["a", "b"]}]},
    {"messages": [{"role": "user", "content": [None]}]},
    {"messages": [{"role": "user", "content": {}}]},
    {"messages": [None]},
    {"messages": ["hi"]},
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is it?"},
                    {"type": "image_url", "image_url": {"url": "data:," + "A" * 300_000}},
                    {"type": "input_audio", "input_audio": {}},
                    {"type": "zzz"},
                    {"type": "text", "text": 5},
                ],
            }
        ]
    },
    {"stop": "x"},
    {"stop": ["a"] * 6},
    {"stop": None},
    *MAX_TOKENS,
    {"max_completion_tokens": 5, "max_tokens": 9},
    {"n": 0},
    {"n": "x"},
    {"metadata": "odd"},
    {"metadata": {"user": "u"}},
    {"tools": None},
    {"priority": None, "temperature": 1.0},
]


async def test_what_engines_may_judge_is_left_to_them() -> None:
    """Cases 127, 129, 132, 154."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for fields in FOR_ENGINES_TO_JUDGE:
            body = {**chat(), **fields}
            assert (await gw.post(body)).status == 200, fields

            sent = engine.calls[-1].json
            assert sent == {key: value for key, value in body.items() if key != "priority"}


@pytest.mark.parametrize(
    "prompt", ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]], [], "", ["a", None], [2**53 + 1]]
)
async def test_prompts_come_in_many_forms(prompt: object) -> None:
    """Case 128."""
    body = {"model": MODEL, "prompt": prompt}
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.post(body, path="/v1/completions")).status == 200
        assert engine.calls[0].json == body
        assert engine.calls[0].target == "/v1/completions"


ODD = (
    b'{"z":1, "model":"m1","seed":9007199254740993,"temperature":1.0,"top_p":1e-7,'
    b'"x":"<&>\\u00e9\xc3\xa9","logit_bias":{"100":-100},"top_k":5,"guided_json":{"a":[1,2.50]},'
    b'"messages":[{"role":"user","content":"hi"}],"a":null,"a":null%b}'
)


async def test_a_body_passes_byte_for_byte_when_nothing_must_change() -> None:
    """Cases 135, 150 and 154."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(ODD % b"")
        await gw.post(ODD % b',"stream":true')
        await gw.post(ODD % b',"metadata":{"workflow-id":"w","user":"u"}')

        whole, stream, changed = (seen.body for seen in engine.calls)
        assert whole == ODD % b""
        # What the gateway asks for besides is put before the client's own bytes.
        assert stream == (ODD % b',"stream":true').replace(
            b"{", b'{"stream_options":{"include_usage":true},', 1
        )
        expected = json.loads(ODD % b',"metadata":{"user":"u"}')
        assert json.loads(changed) == expected
        assert list(json.loads(changed)) == list(expected)


async def test_of_duplicate_keys_the_last_one_counts() -> None:
    body = GOOD.replace(b'{"model": "m1"', b'{"model": "nope", "model": "m1"')
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.post(body)).status == 200
        assert engine.calls[0].body == body


async def test_a_workflow_may_be_named_in_the_body_and_the_header_wins() -> None:
    body = chat(metadata={"workflow-id": "body", "workflow-stage": "s", "request-id": "r-1"})
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post(body)
        await gw.post(body, headers={"x-workflow-id": "header"})

        assert reply.headers["x-request-id"] == "r-1"
        assert [seen.json for seen in engine.calls] == [chat(), chat()]
        listed = (await gw.request("GET", "/v1/workflows")).json["data"]
        assert isinstance(listed, list)
        assert {workflow["id"] for workflow in listed} == {"body", "header"}


async def test_an_upload_above_the_limit_is_a_413_as_soon_as_it_is_known() -> None:
    """Case 130."""
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, limits={"max_body_bytes": 100_000}) as gw,
    ):
        big = chat("x" * 90_000)
        assert (await gw.post(big)).status == 200

        announced = await gw.post(chat("x" * 110_000))
        assert (announced.status, announced.error["code"]) == (413, "body_too_large")

        async def pieces() -> object:
            for _ in range(12):
                yield b"x" * 10_000

        async with gw.session.post(gw.url + "/v1/chat/completions", data=pieces()) as response:
            assert response.status == 413
        assert len(engine.calls) == 1


async def test_a_large_body_passes() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        body = chat("y" * 8_000_000)
        assert (await gw.post(body)).status == 200
        assert engine.calls[0].json == body


async def test_a_compressed_body_is_refused() -> None:
    """Case 131."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post(GOOD, headers={"content-encoding": "gzip"})

        assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/nope", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/invocations", 404),
        ("POST", "/metrics", 405),
    ],
)
async def test_unknown_paths_and_methods_have_openai_errors(
    method: str, path: str, status: int
) -> None:
    """Cases 117 and 195."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.request(method, path)

        assert reply.status == status
        assert reply.error["type"] == "invalid_request_error"
        assert ("allow" in reply.headers) is (status == 405)
        assert engine.calls == []


async def test_a_trailing_slash_is_no_other_path() -> None:
    """Case 141."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(), path="/v1/chat/completions/")).status == 200
        assert (await gw.request("GET", "/v1/models/")).status == 200
        assert engine.calls[0].target == "/v1/chat/completions"
