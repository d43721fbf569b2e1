"""Reads JSON as engines write it: fast where it is strict, tolerant where it is not."""

import json

import orjson


def loads(text: bytes) -> object:
    """Parse JSON that may hold NaN, infinities or lone surrogates; ValueError if it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
