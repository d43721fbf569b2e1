"""What is said on standard error, and that nobody waits for it."""

import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from gateway.telemetry.logs import Aside, JsonFormatter, TextFormatter, set_up

LOG = logging.getLogger("gateway.test")


@pytest.fixture
def _own_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


def a_record(message: str = "so it is", **extra: object) -> logging.LogRecord:
    """A warning."""
    record = LOG.makeRecord(LOG.name, logging.WARNING, "f.py", 1, message, (), None, extra=extra)
    record.created = 0.5
    return record


def test_json_says_in_one_line_what_when_and_of_which_request() -> None:
    record = a_record("a\nb", request_id="hs-1", fields={"status": 500, "path": "/v1"})
    record.exc_info = (ValueError, ValueError("no good"), None)
    text = JsonFormatter("worker").format(record)

    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("exception").endswith("ValueError: no good")
    assert line == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "gateway.test",
        "message": "a\nb",
        "process": "worker",
        "pid": os.getpid(),
        "request_id": "hs-1",
        "status": 500,
        "path": "/v1",
    }


def test_text_ends_with_the_fields() -> None:
    text = TextFormatter().format(a_record(request_id="hs-1", fields={"status": 200}))

    assert text.endswith("WARNING gateway.test so it is request_id=hs-1 status=200")


def test_a_message_begins_no_other_line_of_text_but_a_traceback_has_its_lines() -> None:
    record = a_record("at a\nERROR gateway b\r\x1b[2J\u2028 café")
    record.exc_info = (ValueError, ValueError("no good"), None)

    line, trace = TextFormatter().format(record).split("\n", 1)

    assert line.endswith(r"gateway.test at a\nERROR gateway b\r\x1b[2J\u2028 café")
    assert trace == "ValueError: no good"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param("/v1/models", "/v1/models", id="plain"),
        pytest.param("/x status=200", '"/x status=200"', id="no other field"),
        pytest.param("a\nb", r"'a\nb'", id="no other line"),
        pytest.param("", '""', id="nothing"),
    ],
)
def test_no_value_can_pass_for_something_else(value: str, told: str) -> None:
    text = TextFormatter().format(a_record(fields={"path": value}))

    assert text.endswith(f" path={told}")


@pytest.mark.usefixtures("_own_root")
def test_every_logger_speaks_through_it_from_its_level_on() -> None:
    stream = io.StringIO()
    handler = set_up("json", "warning", stream=stream)
    logging.getLogger("uvicorn.error").info("not this")
    LOG.warning("but %s", "this")
    handler.close()

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "but this"


class Stuck(io.StringIO):
    """A reader that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.is_asked = threading.Event()

    def write(self, text: str) -> int:
        self.is_asked.set()
        self.goes_on.wait(10)
        return super().write(text)


def test_nobody_waits_for_a_slow_reader_and_what_is_lost_is_counted() -> None:
    stream = Stuck()
    handler = Aside(stream, max_unwritten=3)
    handler.handle(a_record("first"))
    assert stream.is_asked.wait(5)
    for number in range(10):
        handler.handle(a_record(f"line {number}"))
    assert handler.dropped == 7
    stream.goes_on.set()
    handler.close()

    lines = stream.getvalue().splitlines()
    assert [line for line in lines if not line.startswith("7 lines")] == [
        "first",
        "line 0",
        "line 1",
        "line 2",
    ]
    assert any(line.startswith("7 lines of the log were lost") for line in lines)


def test_a_reader_that_is_gone_hurts_nobody() -> None:
    stream = io.StringIO()
    stream.close()
    handler = Aside(stream)
    handler.handle(a_record())
    handler.close()

    assert handler.dropped == 1
