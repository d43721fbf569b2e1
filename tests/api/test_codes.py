"""The words that errors bear are from closed sets, and documented."""

import json
import re
from pathlib import Path

import pytest

from gateway.api.codes import CODES, TYPES
from gateway.api.errors import failure
from gateway.backends.base import EngineError
from gateway.backends.engine_errors import kind_of_status
from gateway.backends.openai import TOO_LONG


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (400, {"code": 400}, ("invalid_request_error", "invalid_request")),
        (400, {"code": "context_length_exceeded"}, ("invalid_request_error", TOO_LONG)),
        (400, {"code": "queue_full"}, ("invalid_request_error", "invalid_request")),
        (401, {"code": "invalid_api_key"}, ("authentication_error", "backend_unauthorized")),
        (404, {"code": "model_not_found"}, ("invalid_request_error", "model_not_found")),
        (413, {"code": 413}, ("invalid_request_error", "body_too_large")),
        (424, {"code": []}, ("api_error", "server_error")),
        (429, {}, ("overloaded_error", "overloaded")),
        (503, {"code": None}, ("overloaded_error", "overloaded")),
        (599, {"code": "99999"}, ("api_error", "server_error")),
    ],
)
def test_an_engines_words_are_passed_on_under_names_that_clients_know(
    status: int, said: dict[str, object], told: tuple[str, str]
) -> None:
    own = {"message": "too long", "param": "messages"}
    error = failure(
        EngineError(kind_of_status(status), status, {**own, "type": "BadRequestError", **said})
    )

    kind, code = told
    assert error.status == status
    assert json.loads(error.body())["error"] == {**own, "type": kind, "code": code}


def test_every_code_is_documented_and_no_other_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    table = text.partition("## Errors")[2].partition("An engine's own")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| [0-9]", line)]

    assert {code for row in rows for code in re.findall("`([a-z_]+)`", row)} == CODES
    kinds = next(line for line in table.splitlines() if line.startswith("`type` is"))
    assert set(re.findall("`([a-z_]+_error)`", kinds)) == TYPES
