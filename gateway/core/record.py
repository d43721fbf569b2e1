"""Record: a frozen dataclass that other processes may be sent, compiled or not."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any


class Record:
    """Pickles as a call of its class: compiled, a frozen dataclass has no other way back."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Return how to make it anew."""
        own: Any = self
        told = {field.name: getattr(self, field.name) for field in fields(own) if field.init}
        return _made, (type(self), told)


def _made(kind: Callable[..., object], told: dict[str, object]) -> object:
    return kind(**told)
