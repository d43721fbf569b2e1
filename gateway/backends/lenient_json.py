"""Reads and writes JSON as engines do: fast where it is strict, tolerant where it is not."""

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


def dumps(content: object) -> bytes:
    """Return JSON on one line; what `loads` took, this writes, or ValueError: it is too deep."""
    try:
        return orjson.dumps(content)
    except TypeError:  # a lone surrogate, an integer beyond 64 bits, or nested deeply
        pass
    try:
        return json.dumps(content).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
