"""vLLM gets a priority only as long as it takes one."""

import orjson
import pytest

from gateway.backends.vllm import VllmDialect
from tests.backends.builders import a_call, an_error


def refused_for_priority(message: str) -> dict[str, object]:
    return {"object": "error", "message": message, "type": "BadRequestError", "code": 400}


def test_a_priority_is_sent_where_it_is_obeyed_and_nothing_else_is_touched() -> None:
    call = a_call(x=1.0)
    body, mender = VllmDialect(priority_scheduling=True).prepare(call, -3)

    assert orjson.loads(body)["priority"] == -3
    assert body.endswith(call.body[1:])
    assert mender is None
    assert VllmDialect().prepare(call, -3) == (call.body, None)


@pytest.mark.parametrize(
    "message",
    [
        "Got priority 1 but Priority scheduling is not enabled.",
        "V1 does not support priority yet.",
    ],
)
def test_an_engine_that_refuses_priorities_gets_none_any_more(message: str) -> None:
    dialect = VllmDialect(priority_scheduling=True)

    assert dialect.adapts_to(an_error(400, refused_for_priority(message)))
    assert dialect.prepare(a_call(), 5) == (a_call().body, None)
    assert not dialect.adapts_to(an_error(400, refused_for_priority(message)))


def test_other_errors_change_nothing() -> None:
    dialect = VllmDialect(priority_scheduling=True)
    error = an_error(400, refused_for_priority("max_tokens must be at least 1"))

    assert not dialect.adapts_to(error)
    assert dialect.explain(error) is error
    assert b"priority" in dialect.prepare(a_call(), 5)[0]
