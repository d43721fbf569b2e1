"""What goes to TGI in another form, what is refused for it, and what its errors mean."""

from typing import Any

import orjson
import pytest

from gateway.backends.base import EngineError
from gateway.backends.tgi import TgiDialect
from gateway.core.outcomes import FailureKind
from tests.backends.builders import CHAT, COMPLETIONS, a_call, an_error, an_event_error

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def sent(path: str = CHAT, **body: Any) -> dict[str, object]:
    """What TGI gets for a call with these members, but for those that every call has."""
    raw, mender = TgiDialect(frozenset({"sql-lora"})).prepare(a_call(path, **body), 3)
    assert mender is not None
    said = orjson.loads(raw)
    assert isinstance(said, dict)
    return {name: said[name] for name in said if name not in ("messages", "prompt")}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({}, {}, id="nothing said"),
        pytest.param({"top_p": 1.0}, {}, id="the end of its open range"),
        pytest.param({"top_p": 1}, {}, id="the same as an integer"),
        pytest.param({"top_p": 0.9}, {"top_p": 0.9}, id="a share"),
        pytest.param({"stop": "x"}, {"stop": ["x"]}, id="one stop"),
        pytest.param({"stop": ["x", "y"]}, {"stop": ["x", "y"]}, id="two stops"),
        pytest.param({"max_completion_tokens": 5}, {"max_tokens": 5}, id="the newer limit"),
        pytest.param(
            {"max_tokens": 9, "max_completion_tokens": 5}, {"max_tokens": 5}, id="both limits"
        ),
        pytest.param({"stream_options": None, "stream": None, "user": None}, {}, id="nulls"),
        pytest.param({"response_format": {"type": "text"}}, {}, id="any text"),
        pytest.param(
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json", "value": {"type": "object"}}},
            id="any object",
        ),
        pytest.param(
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA},
                }
            },
            {"response_format": {"type": "json", "value": SCHEMA}},
            id="a schema",
        ),
        pytest.param(
            {"response_format": {"type": "regex", "value": "a+"}},
            {"response_format": {"type": "regex", "value": "a+"}},
            id="a grammar of its own",
        ),
        pytest.param({"n": 1, "logit_bias": {}, "echo": False}, {}, id="said, but nothing meant"),
        pytest.param({"presence_penalty": 0}, {}, id="no penalty"),
        pytest.param({"temperature": 0, "seed": 7}, {"temperature": 0, "seed": 7}, id="sampling"),
    ],
)
def test_a_body_is_adapted(body: dict[str, Any], expected: dict[str, object]) -> None:
    assert sent(**body) == {"model": "tgi", **expected}


def test_tgis_own_api_passes_as_it_is() -> None:
    call = a_call("/generate", inputs="hi", parameters={"top_p": 1.0})

    assert TgiDialect().prepare(call, 0) == (call.body, None)


def test_completions_are_not_asked_for_a_usage_chunk() -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    assert "stream_options" in sent(**options)
    assert sent(COMPLETIONS, **options) == {"model": "tgi", "stream": True}


@pytest.mark.parametrize(
    ("model", "upstream"),
    [("m1", "tgi"), ("org/model", "tgi"), ("tgi", "tgi"), ("sql-lora", "sql-lora")],
)
def test_a_model_is_the_base_unless_it_is_a_declared_adapter(model: str, upstream: str) -> None:
    assert sent(model=model)["model"] == upstream


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"logit_bias": {"5": 1}}, "logit_bias"),
        (CHAT, {"min_tokens": 5}, "min_tokens"),
        (CHAT, {"ignore_eos": True}, "ignore_eos"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"logprobs": 3}, "logprobs"),
        (COMPLETIONS, {"suffix": "x"}, "suffix"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt"),
    ],
)
def test_what_tgi_would_leave_out_is_refused_and_may_be_tried_elsewhere(
    path: str, body: dict[str, object], param: str
) -> None:
    with pytest.raises(EngineError) as refused:
        sent(path, **body)

    error = refused.value
    assert (error.kind, error.status, error.retryable) == (FailureKind.UNSUPPORTED, 400, True)
    assert error.error["param"] == param


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        pytest.param(
            an_error(
                422,
                {"error": "Input validation error: `top_p` ...", "error_type": "validation"},
            ),
            FailureKind.INVALID_REQUEST,
            400,
            None,
            id="validation",
        ),
        pytest.param(
            an_error(
                422,
                {
                    "error": "Input validation error: `inputs` must have less than 9 tokens.",
                    "error_type": "validation",
                },
            ),
            FailureKind.INVALID_REQUEST,
            400,
            "context_length_exceeded",
            id="too long",
        ),
        pytest.param(
            an_error(422, "Failed to deserialize the JSON body: stop: invalid", "text/plain"),
            FailureKind.INVALID_REQUEST,
            400,
            None,
            id="in plain text",
        ),
        pytest.param(
            an_error(429, {"error": "Model is overloaded", "error_type": "overloaded"}),
            FailureKind.OVERLOADED,
            503,
            None,
            id="overloaded",
        ),
        pytest.param(
            an_event_error({"error": {"message": "Model is overloaded", "http_status_code": 422}}),
            FailureKind.OVERLOADED,
            503,
            None,
            id="overloaded, in a stream",
        ),
        pytest.param(
            an_event_error(
                {"error": {"message": "Input validation error: x", "http_status_code": 422}}
            ),
            FailureKind.INVALID_REQUEST,
            400,
            None,
            id="validation, in a stream",
        ),
        pytest.param(
            an_event_error(
                {
                    "error": {
                        "message": "Request failed during generation: CUDA OOM",
                        "http_status_code": 422,
                    }
                }
            ),
            FailureKind.SERVER_ERROR,
            502,
            None,
            id="generation, in a stream",
        ),
        pytest.param(
            an_error(424, {"error": "Request failed during generation: x", "error_type": "g"}),
            FailureKind.SERVER_ERROR,
            502,
            None,
            id="generation",
        ),
        pytest.param(
            an_error(500, {"error": "Incomplete generation", "error_type": "incomplete"}),
            FailureKind.SERVER_ERROR,
            502,
            None,
            id="incomplete",
        ),
        pytest.param(
            an_error(503, {"error": "unhealthy", "error_type": "healthcheck"}),
            FailureKind.OVERLOADED,
            503,
            None,
            id="unhealthy",
        ),
        pytest.param(an_error(401, ""), FailureKind.INVALID_REQUEST, 401, None, id="a wrong key"),
    ],
)
def test_errors_mean_what_their_texts_say(
    error: EngineError, kind: FailureKind, status: int, code: str | None
) -> None:
    meant = TgiDialect().explain(error)

    assert (meant.kind, meant.status) == (kind, status)
    assert meant.error["code"] == code
    assert meant.retryable is (kind is not FailureKind.INVALID_REQUEST)
    assert set(meant.error) == {"message", "type", "param", "code"}
    assert TgiDialect().explain(meant).error == meant.error


def test_what_tgi_says_in_plain_text_reaches_the_client() -> None:
    error = TgiDialect().explain(an_error(422, "stop: invalid type", "text/plain; charset=utf-8"))

    assert error.error["message"] == "stop: invalid type"
