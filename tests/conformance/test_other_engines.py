"""Engines of the kind `openai` with habits of their own: `transformers serve`, SGLang, late errors
of TGI. The answers are canned.
"""

import json

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    MODEL,
    Script,
    a_fake_backend,
    answers,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio


def event(content: object) -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(content)}\n\n".encode()


def transformers_chunk(content: str, **more: object) -> bytes:
    """A chunk as `transformers serve` writes it: no finish reason before the last."""
    choice: dict[str, object] = {"index": 0, "delta": {"content": content}}
    if "usage" in more:
        choice["finish_reason"] = "stop"
    return event({"id": "r1", "model": f"{MODEL}@main", "choices": [choice], **more})


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


async def test_a_stream_without_an_end_mark_ends_with_its_connection() -> None:
    """`transformers serve`: usage on the last chunk, and no `[DONE]`."""
    script = streams(transformers_chunk("a"), transformers_chunk("b", usage=USAGE))
    async with (
        a_fake_backend(script) as engine,
        a_gateway(engine, backends=[{"kind": "openai"}]) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        assert reply.status == 200
        texts = [
            json.loads(data)["choices"][0]["delta"]["content"]
            for data in reply.events
            if data != b"[DONE]"
        ]
        assert "".join(texts) == "ab"
        assert gw.tokens()[1] == 4
        assert gw.settled() == {("completed", ""): 1}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("400 Bad Request", {"detail": "Server is pinned to x"}, "Server is pinned to x"),
        (
            "422 Unprocessable Entity",
            {"detail": [{"loc": ["body"], "msg": "field required"}]},
            "field required",
        ),
    ],
)
async def test_fastapis_errors_get_openais_shape(status: str, body: object, message: str) -> None:
    async with (
        a_fake_backend(answers(json.dumps(body).encode(), status)) as engine,
        a_gateway(engine, backends=[{"kind": "openai"}]) as gw,
    ):
        reply = await gw.post(chat())

        assert reply.status == int(status[:3])
        assert reply.error["message"] == message
        assert reply.error["type"] == "invalid_request_error"
        assert len(engine.calls) == 1


async def test_sglang_gets_its_priorities_the_other_way_round() -> None:
    """There, higher is sooner."""
    priorities = {}
    for kind in ("vllm", "openai"):
        backend = {"kind": kind, "priority_scheduling": True}
        async with a_fake_backend(plain) as engine, a_gateway(engine, backends=[backend]) as gw:
            await gw.post(chat(priority=7))
            priorities[kind] = engine.calls[0].json["priority"]

    assert priorities["openai"] == -priorities["vllm"]  # type: ignore[operator]  # a number


def tgi_chunk(content: str, finish: str | None = None) -> bytes:
    """A chunk of TGI's."""
    delta = {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "id": "", "model": "tgi", "choices": [choice]})


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(
            event({"error": "Request failed during generation: x", "error_type": "generation"}),
            id="an older version's",
        ),
        pytest.param(
            event(
                {
                    "error": {
                        "message": "Request failed during generation: x",
                        "http_status_code": 422,
                    }
                }
            ),
            id="with a status that is not meant",
        ),
    ],
)
@pytest.mark.parametrize("began", [False, True])
async def test_a_batch_that_fails_on_tgi_is_not_the_clients_fault(
    failure: bytes, began: bool
) -> None:
    """Case 15: before the first token it is tried again, afterwards it is told."""
    pieces = [tgi_chunk("a"), tgi_chunk("b")] if began else []
    script: Script = streams(b":\n\n", *pieces, failure, DONE)
    async with (
        a_fake_backend(script) as engine,
        a_gateway(engine, backends=[{"kind": "tgi"}]) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        error = json.loads(reply.events[-1])["error"] if began else reply.error
        assert error["message"] == "Request failed during generation: x"
        assert error["type"] == "api_error"
        assert reply.status == (200 if began else 502)
        assert len(engine.calls) == (1 if began else 3)
        assert gw.settled() == {("failed", "server_error"): 1}


async def test_a_tgi_stream_is_mended_wherever_the_network_cuts_it() -> None:
    whole = b"".join([b":\n\n", tgi_chunk("a"), tgi_chunk("漢"), tgi_chunk("", "eos_token"), DONE])
    cut = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    async with (
        a_fake_backend(streams(*cut)) as engine,
        a_gateway(engine, backends=[{"kind": "tgi"}]) as gw,
    ):
        reply = await gw.post(chat(stream=True))

        *chunks, done = reply.events
        frames = [json.loads(chunk) for chunk in chunks]
        assert done == b"[DONE]"
        assert [frame["choices"][0]["delta"]["content"] for frame in frames] == ["a", "漢", ""]
        assert frames[-1]["choices"][0]["finish_reason"] == "stop"
        assert {frame["model"] for frame in frames} == {MODEL}
        assert len({frame["id"] for frame in frames} - {""}) == 1
