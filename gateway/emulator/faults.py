"""Faults: what an emulated engine can be told to do wrong, by POST /emulator/faults (pure)."""

from dataclasses import dataclass, fields

import orjson


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults in force; a POST replaces them all."""

    stall: bool = False
    """Nothing moves; /health stays 200, as with a hung engine core."""
    slow: float = 1.0
    """Every step takes this many times as long."""
    error_rate: float = 0.0
    """Share of requests answered with a 500."""
    drop_rate: float = 0.0
    """Share of requests whose connection is cut after the first token (or instead of an answer)."""
    refuse: bool = False
    """Connections are cut as soon as a request comes in, other than one for more orders."""
    crash: bool = False
    """Lose all that is running, once; say so to their clients as vLLM does."""

    def __post_init__(self) -> None:
        if self.slow <= 0:
            raise ValueError("slow must be > 0")
        for name in ("error_rate", "drop_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1]")


NO_FAULTS = Faults()


def read_faults(body: bytes) -> Faults:
    """Return the faults that a body names; ValueError says what is wrong with it."""
    given = orjson.loads(body or b"{}")
    if not isinstance(given, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - one error for callers
    defaults = {field.name: field.default for field in fields(Faults)}
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"no fault '{name}' (known: {', '.join(defaults)})")
        wanted = bool if isinstance(defaults[name], bool) else (int, float)
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise ValueError(f"{name} must be {'true or false' if wanted is bool else 'a number'}")
    return Faults(**given)
