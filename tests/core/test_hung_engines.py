"""Engines that hang: found by the tokens that do not come, and not taken for slow ones."""

from collections.abc import Sequence

import pytest

from gateway.core.breaker import BreakerState, HealthRules
from gateway.core.commands import Command, Recall, Start
from gateway.core.events import (
    Arrived,
    BackendChanged,
    Event,
    Failed,
    Finished,
    FirstToken,
    Heard,
    Progressed,
    TimePassed,
)
from gateway.core.load import BackendLoad
from gateway.core.outcomes import FailureKind
from gateway.core.policies import policy_from_name
from gateway.core.retries import RetryRules
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, BackendState, RequestId
from tests.builders import a_backend, a_profile, a_request
from tests.core.referee import Referee

A = BackendId("a")
RULES = HealthRules(stall_s=5.0, silence_s=60.0, cooldown_s=5.0, ramp_s=0.0)
ELSEWHERE = a_backend("b", models=frozenset({"m2"}))
"""Is of no use until it serves the model, so that what comes first is on `a`."""


class Story:
    """What happens to calls on `a` while `b` could have them, too."""

    def __init__(
        self,
        backend: Backend | None = None,
        rules: HealthRules = RULES,
        burst: int = 256,
        policy: str = "least_backlog+fcfs",
    ) -> None:
        self.scheduler = Scheduler(
            [backend or a_backend("a"), ELSEWHERE],
            policy_from_name(policy),
            health=rules,
            retries=RetryRules(burst=burst, share=0.0),
        )
        self._referee = Referee(self.scheduler)
        self.recalled: list[str] = []

    @property
    def load(self) -> BackendLoad:
        return self.scheduler.fleet.loads[A]

    @property
    def is_suspected(self) -> bool:
        return self.load.breaker.state is not BreakerState.CLOSED

    def begin(
        self,
        *names: str,
        streams: bool = True,
        prompt_tokens: int = 100,
        answer_tokens: float = 10,
    ) -> None:
        """Calls are started on `a` at 0; then `b` is there for others."""
        for name in names:
            request = a_request(
                name,
                reports_first_token=streams,
                prompt_tokens=prompt_tokens,
                answer_tokens=answer_tokens,
            )
            assert started(self.feed(Arrived(request), 0.0)) == ["a"]
        self.feed(BackendChanged(a_backend("b")), 0.0)

    def feed(self, event: Event, now: float) -> Sequence[Command]:
        commands = self._referee.feed(event, now)
        self.recalled += [c.request_id for c in commands if isinstance(c, Recall)]
        return commands

    def wait(self, until: float, heard_every_s: float | None = None) -> None:
        """Time passes; perhaps streams go on meanwhile, and perhaps nobody tells of anything."""
        heard_at = [] if heard_every_s is None else [heard_every_s * n for n in range(1, 1000)]
        while True:
            alarm = self.scheduler.wake_at
            due = min([*heard_at[:1], *([alarm] if alarm is not None else [])], default=until)
            if due >= until:
                return
            if heard_at and heard_at[0] == due:
                heard_at.pop(0)
                self.feed(Heard(A), due)
            else:
                self.feed(TimePassed(), due)


def started(commands: Sequence[Command]) -> list[str]:
    """Where calls were started."""
    return [command.backend_id for command in commands if isinstance(command, Start)]


def test_an_engine_whose_streams_all_stop_is_suspected_long_before_a_timeout() -> None:
    story = Story()
    story.begin("r1", "r2")
    story.feed(FirstToken(RequestId("r1")), 1.0)

    story.wait(5.9)
    assert not story.is_suspected
    story.wait(6.1)
    assert story.is_suspected
    assert started(story.feed(Arrived(a_request("new")), 6.2)) == ["b"]


def test_nobody_needs_to_ask_for_it_to_be_found() -> None:
    story = Story()
    story.begin("r1")

    assert story.scheduler.wake_at == 5.0


def test_calls_that_no_client_has_seen_a_byte_of_are_asked_back_and_run_elsewhere() -> None:
    story = Story()
    story.begin("begun", "asked")
    story.feed(FirstToken(RequestId("begun")), 1.0)

    story.wait(10.9)
    assert story.recalled == []
    story.wait(11.1)
    assert story.recalled == ["asked"]

    broke = Failed(RequestId("asked"), FailureKind.TIMEOUT_FIRST_TOKEN, retryable=True)
    assert started(story.feed(broke, 11.2)) == ["b"]
    story.wait(60.0)
    assert story.recalled == ["asked"]


def test_calls_that_do_not_stream_are_asked_back_with_those_that_do() -> None:
    story = Story()
    assert started(story.feed(Arrived(a_request("s")), 0.0)) == ["a"]
    story.begin("whole", streams=False)

    story.wait(11.0)

    assert sorted(story.recalled) == ["s", "whole"]


def test_what_is_asked_back_is_paid_for_by_the_retry_budget() -> None:
    story = Story(burst=1)
    story.begin("r1", "r2")

    story.wait(60.0)

    assert story.recalled == ["r1"]


def test_a_call_that_has_nowhere_else_to_go_stays() -> None:
    story = Story()
    story.feed(Arrived(a_request("r1")), 0.0)

    story.wait(60.0)

    assert story.recalled == []
    assert not story.is_suspected


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(FirstToken(RequestId("r2")), id="a first token"),
        pytest.param(Progressed(RequestId("r1"), 20), id="further tokens"),
        pytest.param(Heard(A), id="a stream goes on"),
        pytest.param(Finished(RequestId("r1"), 5), id="an answer"),
    ],
)
def test_a_sign_of_life_clears_the_suspicion_at_once(sign: Event) -> None:
    story = Story()
    story.begin("r1", "r2")
    story.wait(6.0)
    assert story.is_suspected

    story.feed(sign, 7.0)

    assert not story.is_suspected
    assert story.recalled == []


def test_a_suspected_backend_that_speaks_gets_what_waits() -> None:
    story = Story(a_backend("a", max_in_flight=1), policy="hexsage")
    story.begin("r1")
    story.feed(BackendChanged(a_backend("b", max_in_flight=1)), 0.0)
    assert started(story.feed(Arrived(a_request("r2")), 1.0)) == ["b"]
    story.feed(Progressed(RequestId("r2"), 1), 1.0)
    story.wait(6.5)
    assert story.is_suspected
    assert started(story.feed(Arrived(a_request("r3")), 6.6)) == []
    story.feed(BackendChanged(a_backend("a", max_in_flight=2)), 6.6)

    assert started(story.feed(Heard(A), 6.7)) == ["a"]


# What only looks like it


def test_a_long_prompt_takes_its_time() -> None:
    story = Story()
    story.begin("long", prompt_tokens=60_000)  # a minute of reading

    story.wait(230.0)

    assert not story.is_suspected


def test_prompts_behind_a_long_one_wait_for_it() -> None:
    story = Story()
    story.begin("long", prompt_tokens=30_000)
    assert started(story.feed(BackendChanged(ELSEWHERE), 0.1)) == []
    story.feed(Arrived(a_request("short")), 0.1)

    story.wait(110.0)

    assert not story.is_suspected


def test_many_prompts_are_no_excuse_for_the_first_of_them() -> None:
    """Else a backend that hangs would be excused by what it is given: the more, the longer."""
    story = Story()
    story.begin(*(f"r{n}" for n in range(200)), prompt_tokens=300)

    story.wait(12.0)

    assert story.is_suspected


def test_a_slow_engine_that_goes_on_is_none_that_hangs() -> None:
    slow = a_backend("a", profile=a_profile(slowness=20))  # two seconds a token
    story = Story(slow)
    story.begin("r1")
    story.feed(FirstToken(RequestId("r1")), 2.0)

    story.wait(100.0, heard_every_s=2.0)

    assert not story.is_suspected


def test_an_engine_may_be_as_slow_as_it_is_known_to_be() -> None:
    slow = a_backend("a", profile=a_profile(slowness=50))  # five seconds a token
    story = Story(slow)
    story.begin("r1")
    story.feed(FirstToken(RequestId("r1")), 10.0)

    story.wait(29.0)

    assert not story.is_suspected


def test_calls_that_do_not_stream_may_be_silent_until_they_end() -> None:
    story = Story()
    story.begin("r1", streams=False)

    story.wait(59.0)

    assert not story.is_suspected


def test_but_not_when_probes_fail_as_well() -> None:
    story = Story()
    story.begin("r1", streams=False)
    story.feed(BackendChanged(a_backend("a"), BackendState.DOWN), 1.0)

    story.wait(30.0)

    assert story.recalled == ["r1"]


def test_where_nobody_tells_of_streams_silence_between_their_ends_means_nothing() -> None:
    story = Story(rules=HealthRules(silence_s=60.0))
    story.begin("r1", answer_tokens=600)
    story.feed(FirstToken(RequestId("r1")), 1.0)

    story.wait(60.0)

    assert not story.is_suspected


# Coming back


def test_a_trial_gets_patience_of_its_own() -> None:
    story = Story()
    story.begin("r1")
    story.feed(FirstToken(RequestId("r1")), 1.0)
    story.wait(6.1)
    half_open_at = story.load.breaker.next_at(RULES)
    assert half_open_at is not None
    story.feed(TimePassed(), half_open_at)
    story.feed(BackendChanged(a_backend("b"), BackendState.DOWN), half_open_at)
    assert started(story.feed(Arrived(a_request("trial")), half_open_at + 1)) == ["a"]
    story.feed(BackendChanged(a_backend("b")), half_open_at + 2)

    story.wait(half_open_at + 5.9)
    assert story.load.breaker.trial == "trial"
    story.wait(half_open_at + 6.1)
    assert story.load.breaker.is_open
