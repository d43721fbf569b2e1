"""Responses come whole, or as numbered events that say the same, and can be asked for again."""

from typing import Any

import orjson
import pytest

from gateway.emulator.asks import Ask, Progress, Refusal, Reply
from gateway.emulator.vllm import VllmDialect
from gateway.emulator.vllm_responses import PATH
from tests.emulator.asgi import some_options

HEADERS = {b"content-type": b"application/json"}


def an_ask(dialect: VllmDialect, **fields: object) -> Ask:
    """What a request asks for."""
    body = orjson.dumps({"model": "m1", "input": "hi", **fields})
    return dialect.generates[PATH](HEADERS, body, fresh_id="1", created=7)


def of(reply: Reply) -> Any:
    """The JSON of a reply."""
    assert reply.status == 200
    return orjson.loads(reply.body)


def test_a_stream_says_what_the_whole_answer_says() -> None:
    dialect = VllmDialect(some_options())
    ask = an_ask(dialect, stream=True)
    now = Progress(tokens=3)
    wire = dialect.frames(ask, [now])
    now.tokens, now.finish_reason = 7, "stop"
    wire += dialect.frames(ask, [now]) + dialect.ending(ask, [now])

    blocks = wire.decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    whole = of(dialect.answer(ask, [now]))
    assert events[-1]["response"] == whole
    assert whole["output"][0]["content"][0]["text"] == text
    assert whole["usage"]["output_tokens"] == 7
    assert whole["status"] == "completed"


def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    dialect = VllmDialect(some_options())
    ask = an_ask(dialect, max_output_tokens=2)

    whole = of(dialect.answer(ask, [Progress(tokens=2, finish_reason="length")]))

    assert (whole["status"], whole["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


def test_json_is_json() -> None:
    dialect = VllmDialect(some_options())
    ask = an_ask(dialect, text={"format": {"type": "json_schema", "name": "x", "schema": {}}})

    whole = of(dialect.answer(ask, [Progress(tokens=2, finish_reason="stop")]))

    assert set(orjson.loads(whole["output"][0]["content"][0]["text"])) == {"text"}


def plain(dialect: VllmDialect, method: str, path: str) -> Reply:
    """Ask for something that generates nothing."""
    return dialect.plain(method, path, HEADERS, b"", lambda: pytest.fail("not asked"))


def test_what_was_made_can_be_asked_for_and_not_cancelled() -> None:
    dialect = VllmDialect(some_options())
    whole = of(dialect.answer(an_ask(dialect), [Progress(tokens=2, finish_reason="stop")]))

    assert of(plain(dialect, "GET", f"{PATH}/{whole['id']}")) == whole
    for method, path, status in [
        ("GET", f"{PATH}/other", 404),
        ("POST", f"{PATH}/{whole['id']}/cancel", 400),
    ]:
        with pytest.raises(Refusal) as refused:
            plain(dialect, method, path)
        assert refused.value.reply.status == status
    assert plain(dialect, "POST", f"{PATH}/{whole['id']}").status == 405


def test_every_path_is_listed() -> None:
    listed = of(plain(VllmDialect(some_options()), "GET", "/openapi.json"))["paths"]

    for path in ("/v1/chat/completions", "/v1/embeddings", f"{PATH}/{{response_id}}", "/tokenize"):
        assert path in listed
