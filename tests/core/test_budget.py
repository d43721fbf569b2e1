"""Budget: less for engines in which calls wait, and more again, little by little."""

import pytest

from gateway.core.budget import MIN_SHARE, Budget
from gateway.core.commands import Command, Start
from gateway.core.events import Arrived, EngineLooked, Failed, Finished
from gateway.core.outcomes import FailureKind
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, RequestId
from tests.builders import a_backend, a_profile, a_request

A = BackendId("a")


def a_scheduler() -> Scheduler:
    """One backend that holds 1000 tokens, 95 % of which may be promised."""
    profile = a_profile(kv_tokens=1000)
    return Scheduler([a_backend("a", profile=profile)], policy_from_name("hexsage"))


def started(commands: list[Command]) -> list[str]:
    """The calls that are sent."""
    return [command.request_id for command in commands if isinstance(command, Start)]


def test_the_share_falls_fast_and_rises_slowly_within_bounds() -> None:
    budget = Budget()

    shares = [budget.looked(5, expected=0) and budget.share for _ in range(3)]
    assert shares == pytest.approx([0.7, 0.49, 0.343])
    for _ in range(50):
        budget.looked(5, expected=0)
    assert budget.share == MIN_SHARE
    budget.looked(0, expected=0)
    assert budget.share == pytest.approx(MIN_SHARE + 0.05)
    for _ in range(50):
        budget.looked(0, expected=0)
    assert budget.share == 1.0


def test_a_look_that_shows_nothing_is_no_good_news() -> None:
    budget = Budget()
    budget.looked(1, expected=0)

    assert not budget.looked(None, expected=0)

    assert budget.share == 0.7


def test_answers_raise_the_share_only_where_the_engine_is_silent() -> None:
    silent, talks = Budget(), Budget()
    for budget in (silent, talks):
        budget.refused()
    talks.looked(9, expected=0)
    silent.answered()
    talks.answered()

    assert silent.share == pytest.approx(0.71)
    assert talks.share == pytest.approx(0.49)


def test_an_engine_in_which_calls_wait_is_given_less_until_none_does() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("runs", prompt_tokens=500)), now=0.0)
    scheduler.handle(EngineLooked(A, waiting=3), now=1.0)

    commands = scheduler.handle(Arrived(a_request("waits", prompt_tokens=400)), now=2.0)
    assert started(commands) == []
    looks = [started(scheduler.handle(EngineLooked(A, 0), now=3.0 + n)) for n in range(6)]

    assert looks == [[], [], [], [], [], ["waits"]]


def test_prompts_that_are_still_to_be_read_are_no_queue_but_late_ones_are() -> None:
    scheduler = a_scheduler()
    load = scheduler.fleet.loads[A]
    request = a_request("runs", prompt_tokens=500, reports_first_token=True)
    scheduler.handle(Arrived(request), now=0.0)

    # 500 tokens take half a second.
    scheduler.handle(EngineLooked(A, waiting=1), now=1.9)
    assert load.budget.share == 1.0
    scheduler.handle(EngineLooked(A, waiting=1), now=2.1)

    assert load.budget.share == 0.7


def test_an_engine_that_refuses_for_lack_of_room_is_given_less() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("a")), now=0.0)
    scheduler.handle(Arrived(a_request("b")), now=0.0)

    refused = Failed(RequestId("b"), FailureKind.OVERLOADED, retryable=False)
    scheduler.handle(refused, now=1.0)

    assert scheduler.fleet.loads[A].budget.share == 0.7
    scheduler.handle(Finished(RequestId("a"), 10), now=2.0)
    assert scheduler.fleet.loads[A].budget.share == pytest.approx(0.71)


def test_news_of_a_backend_that_is_gone_changes_nothing() -> None:
    assert a_scheduler().handle(EngineLooked(BackendId("gone"), 3), now=0.0) == []
