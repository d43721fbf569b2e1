"""When workflows arrive: gaps of mean one, drawn once, divided by a rate.

The same seed gives the same gaps for every rate, so runs are paired across rates as well as
across policies. Pure: chance comes in as a seeded generator.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random


def unit_gaps(rng: Random, count: int, cv: float = 1.0) -> list[float]:
    """Draw `count` gaps of mean 1 whose standard deviation is `cv`.

    cv = 1 is a Poisson process, 0 a metronome, above 1 bursts (gamma-distributed gaps).
    """
    if cv < 0:
        raise ValueError(f"the coefficient of variation of gaps must be >= 0, not {cv}")
    if cv == 0:
        return [1.0] * count
    if cv == 1:
        return [rng.expovariate(1.0) for _ in range(count)]
    shape = cv**-2
    return [rng.gammavariate(shape, 1 / shape) for _ in range(count)]


def at_rate(gaps: Sequence[float], rate_per_s: float) -> list[float]:
    """Return the instants, in seconds, of arrivals with these unit gaps at a mean rate."""
    if rate_per_s <= 0:
        raise ValueError(f"a rate must be > 0 workflows/s, not {rate_per_s}")
    return [unit / rate_per_s for unit in accumulate(gaps)]


def replay(recorded_s: Sequence[float], rate_per_s: float | None = None) -> list[float]:
    """Return recorded instants from zero on; with a rate, stretched so that their mean is it."""
    start = min(recorded_s, default=0.0)
    instants = [at - start for at in recorded_s]
    span = max(instants, default=0.0)
    if rate_per_s is None or span == 0:
        return instants
    stretch = (len(instants) - 1) / rate_per_s / span
    return [at * stretch for at in instants]
