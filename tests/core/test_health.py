"""Health, told as stories: backends that fail, fall silent, and come back."""

from collections.abc import Sequence

import pytest

from gateway.core.breaker import BreakerState, HealthRules
from gateway.core.commands import Command, Start
from gateway.core.events import (
    Abandoned,
    Arrived,
    BackendChanged,
    BackendRemoved,
    BackendTrusted,
    Event,
    Failed,
    Finished,
    FirstToken,
    TimePassed,
)
from gateway.core.load import BackendLoad
from gateway.core.outcomes import FailureKind
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, BackendState, RequestId
from tests.builders import a_backend, a_profile, a_request
from tests.core.referee import Referee

A, B = BackendId("a"), BackendId("b")
RULES = HealthRules(failures=2, cooldown_s=5.0, ramp_s=10.0, silence_s=20.0)


class Story:
    """A scheduler and its referee; calls are named by number."""

    def __init__(self, *backends: Backend, policy: str = "hexsage") -> None:
        self.scheduler = Scheduler(
            backends or (a_backend("a"), a_backend("b")),
            policy_from_name(policy),
            health=RULES,
        )
        self._referee = Referee(self.scheduler)
        self._count = 0

    def load(self, backend_id: str) -> BackendLoad:
        return self.scheduler.fleet.loads[BackendId(backend_id)]

    def breaker(self, backend_id: str) -> BreakerState:
        return self.load(backend_id).breaker.state

    def arrive(self, now: float, answer_tokens: float = 10) -> tuple[str, list[str]]:
        """A call comes; return its name and the backends that calls were started on."""
        self._count += 1
        name = f"r{self._count}"
        request = a_request(name, answer_tokens=answer_tokens)
        return name, started(self._referee.feed(Arrived(request), now))

    def fail(
        self, name: str, now: float, kind: FailureKind = FailureKind.RESET, retryable: bool = False
    ) -> list[str]:
        return started(self._referee.feed(Failed(RequestId(name), kind, retryable), now))

    def finish(self, name: str, now: float) -> list[str]:
        return started(self._referee.feed(Finished(RequestId(name), 10), now))

    def feed(self, event: Event, now: float) -> list[str]:
        return started(self._referee.feed(event, now))

    def ruin(self, backend_id: str, now: float) -> None:
        """Let calls on one backend fail, and those on others succeed, until its breaker opens."""
        while self.breaker(backend_id) is BreakerState.CLOSED:
            name, (where,) = self.arrive(now)
            if where == backend_id:
                self.fail(name, now)
            else:
                self.finish(name, now)


def started(commands: Sequence[Command]) -> list[str]:
    """Where calls were started."""
    return [command.backend_id for command in commands if isinstance(command, Start)]


@pytest.mark.parametrize("policy", ["least_backlog+fcfs", "hexsage", "round_robin+fcfs"])
def test_a_backend_that_fails_its_calls_gets_no_more(policy: str) -> None:
    story = Story(policy=policy)
    story.ruin("a", now=0.0)

    assert [story.arrive(1.0)[1] for _ in range(4)] == [[B]] * 4


def test_its_waiting_calls_go_elsewhere() -> None:
    backends = a_backend("a", max_in_flight=2), a_backend("b", max_in_flight=4)
    story = Story(*backends, policy="round_robin+fcfs")
    calls = [story.arrive(0.0) for _ in range(6)]  # round robin: three each, one of them waits
    on_a = [name for name, where in calls if where == [A]]

    assert story.fail(on_a[0], 1.0) == [A]
    assert story.fail(on_a[1], 1.0) == []
    assert story.breaker("a") is BreakerState.OPEN
    assert story.arrive(1.0)[1] == [B]


@pytest.mark.parametrize("kind", [FailureKind.INVALID_REQUEST, FailureKind.OVERLOADED])
def test_clients_mistakes_and_full_engines_are_no_faults(kind: FailureKind) -> None:
    """Cases 78 and 80."""
    story = Story()
    for _ in range(100):
        name, _ = story.arrive(0.0)
        story.fail(name, 0.0, kind)

    assert story.breaker("a") is story.breaker("b") is BreakerState.CLOSED


def test_a_call_that_fails_everywhere_counts_against_the_first_backend_only() -> None:
    story = Story(a_backend("a"), a_backend("b"), a_backend("c"))
    for _ in range(2):
        name, _ = story.arrive(0.0)
        for _ in range(3):
            story.fail(name, 0.0, FailureKind.SERVER_ERROR, retryable=True)
            story.feed(TimePassed(), 0.5)

    bad = [name for name in "abc" if story.breaker(name) is not BreakerState.CLOSED]
    assert len(bad) == 1


def test_no_more_than_a_share_of_the_fleet_is_kept_out() -> None:
    names = "abcd"
    story = Story(*(a_backend(name) for name in names))
    for _ in range(200):
        name, _ = story.arrive(0.0)
        story.fail(name, 0.0)

    assert sum(story.breaker(name) is BreakerState.OPEN for name in names) == 2


def test_the_only_backend_is_never_kept_out() -> None:
    story = Story(a_backend("a"))
    for _ in range(20):
        name, where = story.arrive(0.0)
        assert where == [A]
        story.fail(name, 0.0)


def test_when_the_others_die_the_one_that_was_kept_out_is_better_than_none() -> None:
    story = Story()
    story.ruin("a", now=0.0)

    story.feed(BackendChanged(a_backend("b"), BackendState.DOWN), 1.0)

    assert story.arrive(1.0)[1] == [A]


@pytest.mark.parametrize("policy", ["least_backlog+fcfs", "hexsage"])
def test_one_that_is_kept_out_is_better_than_one_that_has_failed_this_very_call(
    policy: str,
) -> None:
    story = Story(policy=policy)
    story.ruin("a", now=0.0)
    name, where = story.arrive(1.0)
    assert where == [B]

    assert story.fail(name, 1.0, retryable=True) == [A]
    assert story.breaker("a") is BreakerState.OPEN


def test_after_the_cool_down_one_call_is_let_in_on_trial() -> None:
    story = Story(a_backend("a"), a_backend("b", max_in_flight=1))
    story.ruin("a", now=0.0)
    story.arrive(1.0)

    waits, where = story.arrive(2.0)
    assert where == []
    at = story.scheduler.wake_at
    assert at is not None
    assert 5.0 <= at <= 6.25
    assert story.feed(TimePassed(), at) == [A]
    assert story.arrive(at)[1] == []

    story.finish(waits, at + 1)

    assert story.breaker("a") is BreakerState.CLOSED


def test_a_trial_that_fails_keeps_it_out_for_longer() -> None:
    story = Story(a_backend("a"), a_backend("b", max_in_flight=1))
    story.ruin("a", now=0.0)
    story.arrive(1.0)
    trial, where = story.arrive(7.0)
    assert where == [A]

    story.fail(trial, 8.0)

    assert story.breaker("a") is BreakerState.OPEN
    until = story.load("a").breaker.next_at(RULES)
    assert until is not None
    assert until >= 8.0 + 10.0


@pytest.mark.parametrize("ending", ["abandoned", "invalid", "overloaded"])
def test_a_trial_that_tells_nothing_gives_its_permit_back(ending: str) -> None:
    story = Story(a_backend("a"), a_backend("b", max_in_flight=1))
    story.ruin("a", now=0.0)
    story.arrive(1.0)
    trial, where = story.arrive(7.0)
    assert where == [A]

    if ending == "abandoned":
        story.feed(Abandoned(RequestId(trial)), 8.0)
    else:
        kinds = {"invalid": FailureKind.INVALID_REQUEST, "overloaded": FailureKind.OVERLOADED}
        story.fail(trial, 8.0, kinds[ending])

    assert story.breaker("a") is BreakerState.HALF_OPEN
    assert story.arrive(8.0)[1] == [A]


def test_who_is_back_is_not_met_by_a_herd() -> None:
    slow = a_backend("b", profile=a_profile(slowness=50), max_in_flight=1)
    story = Story(a_backend("a"), slow)
    story.arrive(0.0)
    story.feed(BackendChanged(a_backend("a"), BackendState.DOWN), 1.0)
    for _ in range(200):
        story.arrive(2.0)

    story.feed(BackendChanged(a_backend("a"), BackendState.UP), 3.0)

    slots = 256
    assert 0 < story.load("a").in_flight <= 0.1 * slots
    story.feed(TimePassed(), 8.0)
    assert 0.1 * slots < story.load("a").in_flight <= 0.6 * slots
    story.feed(TimePassed(), 13.0)
    assert story.load("a").breaker.ramp == 1.0


def test_at_start_everybody_may_have_everything_at_once() -> None:
    story = Story(a_backend("a", max_in_flight=1))
    story.feed(BackendChanged(a_backend("b"), BackendState.UP), 0.0)

    assert story.load("b").breaker.ramp == 1.0


def test_a_good_probe_does_not_outweigh_calls_that_fail() -> None:
    story = Story()
    story.ruin("a", now=0.0)

    for now in (0.5, 1.0, 1.5):
        story.feed(BackendChanged(a_backend("a"), BackendState.UP), now)

    assert story.breaker("a") is BreakerState.OPEN
    assert story.arrive(2.0)[1] == [B]


def test_a_backend_whose_calls_give_no_sign_of_life_gets_no_more() -> None:
    story = Story()
    story.arrive(0.0)
    story.arrive(0.0)
    story.feed(FirstToken(RequestId("r2")), 15.0)

    assert story.arrive(21.0)[1] == [B]
    assert story.breaker("a") is BreakerState.OPEN
    assert story.breaker("b") is BreakerState.CLOSED


def test_long_calls_may_be_silent_for_longer() -> None:
    story = Story()
    story.arrive(0.0, answer_tokens=100)  # ten seconds, and four times that is not yet over
    story.arrive(30.0)

    assert story.breaker("a") is BreakerState.CLOSED


def test_who_was_silent_and_speaks_is_well() -> None:
    story = Story()
    name, (where,) = story.arrive(0.0)
    story.arrive(21.0)
    assert story.breaker(where) is BreakerState.OPEN

    story.finish(name, 22.0)

    assert story.breaker(where) is BreakerState.CLOSED


def test_an_idle_backend_is_not_silent() -> None:
    story = Story()
    name, _ = story.arrive(0.0)
    story.finish(name, 1.0)
    story.arrive(1000.0)
    story.arrive(1001.0)

    assert story.breaker("a") is story.breaker("b") is BreakerState.CLOSED


def test_an_operator_can_end_a_cool_down() -> None:
    story = Story(a_backend("a"), a_backend("b", max_in_flight=1))
    story.ruin("a", now=0.0)
    story.arrive(1.0)
    assert story.arrive(1.0)[1] == []

    assert story.feed(BackendTrusted(A), 2.0) == [A]
    assert story.breaker("a") is BreakerState.CLOSED
    assert story.feed(BackendTrusted(BackendId("nobody")), 2.0) == []


def test_a_call_held_back_for_a_backend_that_falls_silent_goes_elsewhere() -> None:
    story = Story(a_backend("a", max_in_flight=1), a_backend("b", profile=a_profile(slowness=30)))
    assert story.arrive(0.0)[1] == [A]
    assert story.arrive(0.0)[1] == []  # b is so slow that it waits for a

    assert story.feed(TimePassed(), 20.0) == [B]
    assert story.breaker("a") is BreakerState.OPEN


def test_nothing_is_started_on_a_backend_by_the_event_that_takes_it_away() -> None:
    story = Story(a_backend("a"))
    name, _ = story.arrive(0.0)
    story.fail(name, 1.0, retryable=True)  # it waits a moment before a has it again

    assert story.feed(BackendRemoved(A), 9.0) == []


def test_patience_is_that_of_the_oldest_call_that_is_left() -> None:
    story = Story()
    long, where = story.arrive(0.0, answer_tokens=1000)  # 100 s: its patience is 400 s
    assert where == [A]
    story.scheduler.handle(BackendChanged(story.load("b").backend, BackendState.DOWN), 0.5)
    story.arrive(1.0)
    story.scheduler.handle(BackendChanged(story.load("b").backend), 2.0)

    story.feed(Abandoned(RequestId(long)), 30.0)

    assert story.breaker("a") is BreakerState.OPEN


def test_silence_is_noticed_though_nothing_else_happens() -> None:
    backends = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    story = Story(*backends, policy="hexgen")
    assert story.arrive(0.0)[1] == [A]
    on_b, _ = story.arrive(0.0)
    assert story.arrive(0.0)[1] == []
    assert len(story.load("a").bound) == 1
    story.finish(on_b, 5.0)

    assert story.scheduler.wake_at == 20.0
    assert story.feed(TimePassed(), 20.0) == [B]


def test_several_calls_started_at_once_give_a_backend_its_full_patience() -> None:
    """After a long rest, too: silence counts from the start of the oldest."""
    busy = a_backend("a", max_in_flight=1)
    story = Story(busy, a_backend("b", models=frozenset({"m2"})))
    for _ in range(3):
        story.arrive(500.0)
    both = a_backend("b")

    assert story.feed(BackendChanged(both), 500.0) == [B, B]
    story.feed(TimePassed(), 501.0)

    assert story.breaker("b") is BreakerState.CLOSED
