"""Numbers as people read them in a terminal; what is missing is a dash."""

from math import floor

NONE = "-"
_BAR = "▏▎▍▌▋▊▉█"


def duration(ms: float | None) -> str:
    """Return milliseconds with three digits or so: `870 ms`, `4.52 s`, `12 min`."""
    if ms is None:
        return NONE
    size = abs(ms)
    for below, divisor, unit, digits in (
        (999.5, 1, "ms", 0),
        (9_995, 1000, "s", 2),
        (99_950, 1000, "s", 1),
        (600_000, 1000, "s", 0),
        (7_200_000, 60_000, "min", 0),
    ):
        if size < below:
            return f"{ms / divisor:.{digits}f} {unit}"
    return f"{ms / 3_600_000:.1f} h"


def count(value: float | None) -> str:
    """Return a whole number with its thousands apart."""
    return NONE if value is None else f"{value:,.0f}"


def several(number: int, what: str) -> str:
    """Return `1 backend`, `2 backends`."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def rate(value: float | None) -> str:
    """Return so many a second, three digits or so."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """Return a share in per cent."""
    return NONE if share is None else f"{share * 100:.0f} %"


def bar(share: float, width: int) -> str:
    """Return a bar that is `share` of `width` characters long, to an eighth of one."""
    eighths = floor(min(max(share, 0.0), 1.0) * width * 8 + 0.5)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BAR[rest - 1] if rest else "")).ljust(width)
