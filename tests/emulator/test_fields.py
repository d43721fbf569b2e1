"""Fields of a JSON body: read as leniently as pydantic does, and refused in its words."""

import orjson
import pytest

from gateway.emulator.asks import Refusal
from gateway.emulator.fields import optional_float, optional_int, read_fields, read_object

JSON = {b"content-type": b"application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (3, 3), ("3", 3), (3.0, 3), (True, 1)]
)
def test_whole_numbers(value: object, expected: int | None) -> None:
    assert optional_int({"x": value}, "x") == expected


@pytest.mark.parametrize("value", ["three", 3.5, [3], {}, float("inf")])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(Refusal) as refused:
        optional_int({"x": value}, "x")

    assert orjson.loads(refused.value.reply.body)["error"]["param"] == "body.x"


def test_numbers() -> None:
    assert optional_float({"x": "0.5"}, "x") == 0.5
    assert optional_float({}, "x") is None
    with pytest.raises(Refusal):
        optional_float({"x": []}, "x")


def test_objects() -> None:
    assert read_object({"x": {"y": 1}}, "x") == {"y": 1}
    assert read_object({"x": None}, "x") == {}
    with pytest.raises(Refusal):
        read_object({"x": "y"}, "x")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a": 1,}', "body.8"),
        (b'{"a": "\xff"}', "body.7"),
        (b"[" * 100_000, "body.0"),
        (b"nonsense", "body.0"),
    ],
)
def test_broken_json_is_refused_where_it_breaks(body: bytes, param: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_fields(JSON, body)

    assert orjson.loads(refused.value.reply.body)["error"]["param"] == param
