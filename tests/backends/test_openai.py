"""Engines that take OpenAI's API as it is."""

import orjson
import pytest

from gateway.backends.openai import OpenAiDialect
from tests.backends.builders import a_call, an_error


def test_bytes_go_as_they_came() -> None:
    call = a_call(stop="x", top_p=1.0)

    assert OpenAiDialect().prepare(call, 3) == (call.body, None)


def test_where_higher_is_sooner_the_priority_is_inverted() -> None:
    body, _ = OpenAiDialect(priority_scheduling=True).prepare(a_call(), 3)

    assert orjson.loads(body)["priority"] == -3


def test_a_prompt_that_is_too_long_for_llama_cpp_is_told_in_openais_words() -> None:
    said = {
        "code": 400,
        "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 9000,
        "n_ctx": 4096,
    }
    error = OpenAiDialect().explain(an_error(400, {"error": said}))

    assert error.status == 400
    assert error.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, you requested 600 tokens",
        "The decoder prompt (length 600) is longer than the maximum model length of 512.",
        "The input (600 tokens) is longer than the model's context length (512 tokens).",
    ],
)
def test_so_is_one_for_vllm_and_sglang(message: str) -> None:
    error = OpenAiDialect().explain(an_error(400, {"error": {"message": message, "code": 400}}))

    assert error.error == {
        "message": message,
        "type": None,
        "param": None,
        "code": "context_length_exceeded",
    }


def test_other_errors_are_as_they_are() -> None:
    error = an_error(422, {"detail": "Server is pinned to x"})

    assert OpenAiDialect().explain(error) is error
    assert error.error["message"] == "Server is pinned to x"
    assert not OpenAiDialect().adapts_to(error)
