"""What should have happened in a call's time, as it is predicted."""

import pytest

from gateway.core.call import Call
from gateway.core.silence import Account, Silence
from tests.builders import a_profile, a_request

PROFILE = a_profile()
"""1 ms a prompt token, 100 ms a step."""


def started(
    silence: Silence, name: str, at: float, *, prompt_tokens: int = 1000, is_crowded: bool = False
) -> Call:
    request = a_request(name, prompt_tokens=prompt_tokens, reports_first_token=False)
    call = Call(request=request, sequence=1, arrived_at=at, came_at=at, output_tokens=10)
    call.fresh_tokens = prompt_tokens
    silence.started(call, at, PROFILE, is_crowded=is_crowded)
    return call


def account_of(silence: Silence, call: Call, now: float) -> Account:
    account = silence.ended(call, now)
    assert account is not None
    return account


def test_a_lone_call_reads_and_then_writes() -> None:
    silence = Silence()
    call = started(silence, "x", 0.0)

    account = account_of(silence, call, 2.0)

    parts = silence.predicted(account, output_tokens=11, now=2.0, profile=PROFILE)
    assert parts == pytest.approx((1.0, 1.0))


def test_what_lies_ahead_and_what_comes_meanwhile_is_read_too() -> None:
    silence = Silence()
    started(silence, "ahead", 0.0, prompt_tokens=2000)
    call = started(silence, "x", 0.5)
    started(silence, "later", 4.0, prompt_tokens=500)

    account = account_of(silence, call, 9.0)

    parts = silence.predicted(account, output_tokens=21, now=9.0, profile=PROFILE)
    assert parts is not None
    assert parts[0] == pytest.approx(1.5 + 1.0 + 0.5)
    assert parts[1] == pytest.approx(1.9)  # the step that reads the later prompt is one of them


def test_a_prompt_that_is_not_read_when_the_call_ends_does_not_count() -> None:
    silence = Silence()
    call = started(silence, "x", 0.0)
    started(silence, "later", 4.0, prompt_tokens=2000)

    account = account_of(silence, call, 4.5)

    parts = silence.predicted(account, output_tokens=31, now=4.5, profile=PROFILE)
    assert parts is not None
    assert parts[0] == pytest.approx(1.0 + 0.5)


def test_a_call_that_may_have_waited_is_not_predicted() -> None:
    silence = Silence()
    call = started(silence, "x", 0.0)
    started(silence, "y", 1.0, is_crowded=True)

    account = account_of(silence, call, 9.0)

    assert silence.predicted(account, output_tokens=50, now=9.0, profile=PROFILE) is None


def test_an_unknown_call_has_no_account() -> None:
    silence = Silence()
    call = started(silence, "x", 0.0)
    account_of(silence, call, 1.0)

    assert silence.ended(call, 2.0) is None
