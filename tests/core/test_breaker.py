"""Breaker: closed, open, half open, and back little by little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.breaker import JITTER, Breaker, BreakerState, HealthRules

RULES = HealthRules(failures=3, window=10, cooldown_s=4.0, max_cooldown_s=16.0, ramp_s=10.0)


def opened(now: float = 0.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker("a")
    breaker.open(now, RULES)
    return breaker


def half_open() -> Breaker:
    """A breaker whose cool-down is over."""
    breaker = opened()
    assert breaker.look(4.0 * (1 + JITTER), RULES)
    return breaker


def test_failures_in_a_row_are_bad_and_one_success_between_them_is_not() -> None:
    breaker, rules = Breaker("a"), HealthRules(failures=3, window=100)
    for succeeded in (False, False, True, False, False):
        breaker.count(succeeded, rules)
        assert not breaker.is_bad(rules)

    breaker.count(False, rules)

    assert breaker.is_bad(rules)


def test_too_large_a_share_of_errors_is_bad_without_a_row_of_them() -> None:
    breaker = Breaker("a")
    for succeeded in (True, False, False, True):
        breaker.count(succeeded, RULES)
        assert not breaker.is_bad(RULES)  # too few to tell

    breaker.count(False, RULES)

    assert breaker.is_bad(RULES)


def test_what_is_long_ago_counts_no_more() -> None:
    breaker = Breaker("a")
    for succeeded in (False, False, True, False, False, True, *[True] * 10):
        breaker.count(succeeded, RULES)

    assert not breaker.is_bad(RULES)


def test_while_it_is_open_nothing_is_let_in_until_the_cool_down_is_over() -> None:
    breaker = opened(now=100.0)
    at = breaker.next_at(RULES)

    assert at is not None
    assert 104.0 <= at <= 104.0 + 4 * JITTER
    assert not breaker.look(at - 0.01, RULES)
    assert not breaker.admits
    assert breaker.look(at, RULES)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.admits


def test_half_open_lets_one_call_in_at_a_time() -> None:
    breaker = half_open()

    breaker.started("r1")

    assert breaker.trial == "r1"
    assert not breaker.admits
    breaker.started("r2")
    assert breaker.trial == "r1"


def test_cool_downs_double_up_to_a_bound_and_differ_between_backends() -> None:
    spans: dict[str, list[float]] = {}
    for name in ("a", "b"):
        breaker, now = Breaker(name), 0.0
        spans[name] = []
        for _ in range(5):
            breaker.open(now, RULES)
            at = breaker.next_at(RULES)
            assert at is not None
            spans[name].append(at - now)
            now = at
            breaker.look(now, RULES)

    for nominal_s, span_s in zip((4, 8, 16, 16, 16), spans["a"], strict=True):
        assert nominal_s <= span_s <= nominal_s * (1 + JITTER)
    assert spans["a"] != spans["b"]


def test_a_later_opening_never_shortens_an_earlier_one() -> None:
    """Case 93."""
    long = HealthRules(cooldown_s=60.0)
    breaker = Breaker("a")
    breaker.open(0.0, long)
    breaker.open(1.0, HealthRules(cooldown_s=0.1))

    at = breaker.next_at(long)

    assert at is not None
    assert at >= 60.0


def test_after_a_good_while_the_cool_down_begins_short_again() -> None:
    breaker = opened()
    for now in (10.0, 30.0):
        breaker.look(now, RULES)
        breaker.open(now, RULES)
    breaker.look(60.0, RULES)
    breaker.close(60.0, RULES)

    breaker.open(60.0 + RULES.max_cooldown_s + 1, RULES)

    at = breaker.next_at(RULES)
    assert at is not None
    assert at - (61.0 + RULES.max_cooldown_s) <= 4.0 * (1 + JITTER)


def test_who_is_back_gets_its_budget_in_steps() -> None:
    breaker = half_open()
    breaker.close(100.0, RULES)

    shares = [breaker.ramp]
    while (at := breaker.next_at(RULES)) is not None:
        assert breaker.look(at, RULES)
        shares.append(breaker.ramp)

    assert shares == pytest.approx([n / 10 for n in range(1, 11)])
    assert at is None
    assert breaker.is_at_rest


def test_a_late_look_makes_up_for_the_steps_it_missed() -> None:
    breaker = half_open()
    breaker.close(100.0, RULES)

    breaker.look(105.5, RULES)

    assert breaker.ramp == pytest.approx(0.6)
    breaker.look(1000.0, RULES)
    assert breaker.ramp == 1.0


def test_an_operator_can_say_that_it_is_well() -> None:
    breaker = opened()

    breaker.reset()

    assert breaker.admits
    assert breaker.ramp == 1.0
    assert breaker.is_at_rest


@given(st.floats(0, 1e8), st.lists(st.booleans(), max_size=30))
def test_looking_when_something_is_due_always_leads_on(start: float, moves: list[bool]) -> None:
    breaker, now = Breaker("a"), start
    for opens in moves:
        if opens:
            breaker.open(now, RULES)
        else:
            breaker.close(now, RULES)
        at = breaker.next_at(RULES)
        if at is not None:
            now = max(now, at)
            before = (breaker.state, breaker.ramp)
            assert breaker.look(now, RULES)
            assert (breaker.state, breaker.ramp) != before


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": 0},
        {"window": 1},
        {"cooldown_s": 0.0},
        {"max_ejected_share": 1.5},
        {"error_share": 0.0},
        {"ramp_s": -1.0},
        {"silence_s": 0.0},
        {"max_cooldown_s": 0.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        HealthRules(**wrong)  # type: ignore[arg-type]  # the point is that they are wrong


def test_rules_without_a_ramp_end_one_that_is_under_way() -> None:
    breaker = half_open()
    breaker.close(10.0, RULES)
    at_once = HealthRules(ramp_s=0.0)

    assert breaker.look(10.5, at_once)

    assert breaker.ramp == 1.0
    assert breaker.is_at_rest


def test_a_breaker_that_opens_while_it_warms_up_waits_for_its_cool_down_alone() -> None:
    breaker = half_open()
    breaker.close(10.0, RULES)
    breaker.open(12.0, RULES)
    until = breaker.next_at(RULES)
    assert until is not None
    assert until > 12.0

    breaker.look(until, RULES)

    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.next_at(RULES) is None
