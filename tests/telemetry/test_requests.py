"""What is remembered of requests, and for how long."""

from collections.abc import Sequence

from gateway.core.commands import Command
from gateway.core.events import (
    Abandoned,
    Arrived,
    BackendChanged,
    Event,
    Failed,
    Finished,
)
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, BackendState, RequestId
from gateway.telemetry.requests import Absence, Requests
from tests.builders import a_backend, a_profile, a_request


class Told:
    """A scheduler, and the memory that watches it."""

    def __init__(self, *backends: Backend, max_ended: int = 100) -> None:
        self.scheduler = Scheduler(backends, policy_from_name("least_backlog+fcfs"))
        self.requests = Requests(self.scheduler, max_ended=max_ended)

    def feed(self, event: Event, now: float = 0.0) -> Sequence[Command]:
        commands = self.scheduler.handle(event, now)
        self.requests.observe(now, event, commands)
        return commands


def test_an_answered_request_is_remembered_with_its_decision() -> None:
    told = Told(a_backend("a"), a_backend("b"))
    told.feed(Arrived(a_request("r", answer_tokens=12)), now=1.0)
    told.feed(Finished(RequestId("r"), output_tokens=9), now=3.0)

    record = told.requests.get("r")
    assert record is not None
    assert record.settled is not None
    assert record.settled.outcome is Outcome.COMPLETED
    assert (record.predicted_tokens, record.settled.output_tokens) == (12, 9)
    (attempt,) = record.attempts
    assert set(attempt.decision.scores) == {"a", "b"}
    assert attempt.absent == {}


def test_every_backend_without_a_score_has_its_reason() -> None:
    told = Told(
        a_backend("able"),
        a_backend("drained"),
        a_backend("gone"),
        a_backend("other-model", models=frozenset({"m2"})),
        a_backend("other-route"),
        a_backend("small", profile=a_profile(kv_tokens=50)),
    )
    told.feed(BackendChanged(a_backend("drained"), BackendState.DRAINING))
    told.feed(BackendChanged(a_backend("gone"), BackendState.DOWN))
    eligible = frozenset(map(BackendId, ("able", "drained", "gone", "other-model", "small")))
    told.feed(Arrived(a_request("r", prompt_tokens=100, eligible=eligible)))

    record = told.requests.get("r")
    assert record is not None
    assert record.attempts[0].absent == {
        "drained": Absence.DRAINING,
        "gone": Absence.DOWN,
        "other-model": Absence.NO_MODEL,
        "other-route": Absence.NOT_OFFERED,
        "small": Absence.TOO_SMALL,
    }


def test_a_second_attempt_says_who_failed_the_first() -> None:
    told = Told(a_backend("a"), a_backend("b"))
    told.feed(Arrived(a_request("r")), now=0.0)
    told.feed(Failed(RequestId("r"), FailureKind.RESET, retryable=True), now=2.0)

    record = told.requests.get("r")
    assert record is not None
    first, second = record.attempts
    assert (first.failure, first.failed_at) == (FailureKind.RESET, 2.0)
    assert second.absent == {first.decision.backend_id: Absence.TRIED}
    assert (second.number, second.failure) == (2, None)


def test_a_request_is_found_by_its_clients_id_the_latest_of_that_name() -> None:
    told = Told(a_backend("a"))
    for own_id in ("own-1", "own-2"):
        told.requests.expect(own_id, "theirs")
        told.feed(Arrived(a_request(own_id)))
    told.feed(Arrived(a_request("own-3")))

    found = told.requests.get("theirs")
    assert found is not None
    assert (found.id, found.client_id) == ("own-2", "theirs")
    third = told.requests.get("own-3")
    assert third is not None
    assert third.client_id is None


def test_only_the_last_to_end_are_remembered_and_all_that_have_not_ended() -> None:
    told = Told(a_backend("a"), max_ended=2)
    for number in range(6):
        told.requests.expect(f"r{number}", f"client-{number}")
        told.feed(Arrived(a_request(f"r{number}")))
    for number in range(4):
        told.feed(Abandoned(RequestId(f"r{number}")))

    remembered = [record.id for record in told.requests.latest()]
    assert remembered == ["r5", "r4", "r3", "r2"]
    assert told.requests.get("client-1") is None
    assert told.requests.get("client-2") is not None
    assert len(told.requests) == 4


def test_a_repeated_id_does_not_touch_the_record_of_the_call_that_has_it() -> None:
    told = Told(a_backend("a"))
    told.feed(Arrived(a_request("r", prompt_tokens=7)))
    told.feed(Arrived(a_request("r", prompt_tokens=8)))

    record = told.requests.get("r")
    assert record is not None
    assert (record.prompt_tokens, record.settled) == (7, None)


def test_a_refusal_is_remembered_too() -> None:
    told = Told(a_backend("a"))
    told.feed(Arrived(a_request("r", model="nope")))

    record = told.requests.get("r")
    assert record is not None
    assert record.settled is not None
    assert record.settled.reason is RejectReason.MODEL_NOT_FOUND
    assert record.attempts == []
