"""Mistakes in what somebody wrote, in words that say what belongs there."""

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS: Mapping[str, str] = {
    "extra_forbidden": "is no key that HexSage knows",
    "missing": "is missing",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a map of keys and values",
    "model_type": "must be a map of keys and values",
    "model_attributes_type": "must be a map of keys and values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text; a number that is meant as text goes in quotes",
}
"""By pydantic's names of its errors. It speaks to programmers, of tuples and instances."""


class ConfigError(Exception):
    """Everything that is wrong with the settings, one line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def plainly(error: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, without its place."""
    words = _WORDS.get(error["type"])
    if words is not None:
        return words
    message = str(error["msg"]).removeprefix("Value error, ")
    return message.replace("Input should be", "must be").replace("String should", "must")
