"""Numbers as people read them."""

import pytest

from gateway.cli.words import bar, count, duration, percent, rate


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (870.4, "870 ms"),
        (999.6, "1.00 s"),
        (4520.0, "4.52 s"),
        (9_996.0, "10.0 s"),
        (99_960.0, "100 s"),
        (720_000.0, "12 min"),
        (9_000_000.0, "2.5 h"),
        (-1500.0, "-1.50 s"),
    ],
)
def test_durations_have_three_digits_or_so(ms: float | None, told: str) -> None:
    assert duration(ms) == told


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "    "), (0.5, "██  "), (1.0, "████"), (2.0, "████"), (-1.0, "    "), (0.28, "█▏  ")],
)
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_what_is_missing_is_a_dash() -> None:
    assert {count(None), rate(None), percent(None), duration(None)} == {"-"}


def test_numbers_have_their_thousands_apart_and_no_more_digits_than_tell() -> None:
    assert (count(12345.0), percent(0.416)) == ("12,345", "42 %")
    assert (rate(2655.0), rate(20.66), rate(1.234)) == ("2,655", "20.7", "1.23")
