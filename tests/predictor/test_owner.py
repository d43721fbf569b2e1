"""The owner thread: deadlines, bounds, errors."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from gateway.predictor import owner as module
from gateway.predictor.chore import Chore
from gateway.predictor.history import Histories
from gateway.predictor.learner import Learner
from gateway.predictor.owner import Owner
from gateway.predictor.query import Ended, Level, Mass, Ticket
from gateway.predictor.similar import Similar
from gateway.predictor.vectors import Vectors
from tests.predictor.builders import LetterEmbedder, a_ticket

MASS: Mass = np.full(48, 1 / 48)


class GatedLearner(Learner):
    """Answers once its gate is open."""

    def __init__(self) -> None:
        vectors = Vectors(LetterEmbedder())
        super().__init__(Similar(vectors, Histories(vectors, 100, 8, 10**9)), None)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []

    def answer(self, tickets: Sequence[Ticket]) -> list[tuple[Mass, Level] | None]:
        """Wait, then answer each ticket alike."""
        self.gate.wait(10)
        self.batches.append(len(tickets))
        if any(ticket.text == "boom" for ticket in tickets):
            raise ArithmeticError("boom")
        return [(MASS, Level.SIMILAR) for _ in tickets]


@asynccontextmanager
async def running(learner: Learner) -> AsyncIterator[Owner]:
    """Run an owner."""
    owner = Owner(learner)
    owner.start()
    try:
        yield owner
    finally:
        owner.close()


def test_those_who_wait_are_answered_together() -> None:
    async def story() -> None:
        learner = GatedLearner()
        async with running(learner) as owner:
            learner.gate.clear()
            replies = [owner.ask(a_ticket()) for _ in range(17)]
            learner.gate.set()
            answers = await asyncio.gather(*(reply for reply in replies if reply is not None))
            assert [answer and answer[1] for answer in answers] == [Level.SIMILAR] * 17
            assert sum(learner.batches) == 17
            assert len(learner.batches) < 17

    asyncio.run(story())


def test_more_than_could_be_answered_in_time_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ASKS", 4)
    monkeypatch.setattr(module, "MAX_OUTCOMES", 4)

    async def story() -> None:
        learner = GatedLearner()
        async with running(learner) as owner:
            learner.gate.clear()
            asked = [owner.ask(a_ticket()) for _ in range(30)]
            told = [owner.tell(a_ticket(), 5, Ended.FINISHED) for _ in range(30)]
            learner.gate.set()
            assert None in asked
            assert False in told
            await owner.drained()

    asyncio.run(story())


def test_one_bad_call_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with running(GatedLearner()) as owner:
            first, second = owner.ask(a_ticket("boom")), None
            assert first is not None
            assert await first is None
            second = owner.ask(a_ticket("fine"))
            assert second is not None
            assert await second is not None

    asyncio.run(story())
    assert "ArithmeticError: boom" in caplog.text


def test_one_who_left_is_not_answered_and_not_missed() -> None:
    async def story() -> None:
        learner = GatedLearner()
        async with running(learner) as owner:
            learner.gate.clear()
            first, left = owner.ask(a_ticket()), owner.ask(a_ticket())
            assert first is not None
            assert left is not None
            left.cancel()
            learner.gate.set()
            assert await first is not None
            await owner.drained()

    asyncio.run(story())


def test_outcomes_told_before_it_closes_are_learned() -> None:
    async def story() -> None:
        learner = GatedLearner()
        owner = Owner(learner)
        owner.start()
        for _ in range(50):
            owner.tell(a_ticket("abc"), 5, Ended.FINISHED)
        owner.close()
        assert learner.history_sizes() == {"m": 50}
        assert owner.ask(a_ticket()) is None

    asyncio.run(story())


def test_what_it_says_of_itself_is_published() -> None:
    async def story() -> None:
        async with running(GatedLearner()) as owner:
            owner.tell(a_ticket("abc"), 5, Ended.FINISHED)
            await owner.drained()
            assert owner.published.history_sizes == {"m": 1}
            assert owner.published.calibration["m"]["samples"] == 1
            assert owner.published.nbytes > 0

    asyncio.run(story())


class CountingLearner(GatedLearner):
    """Says when it has learned so many."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted, self.learned = wanted, 0
        self.has_learned = threading.Event()

    def learn(self, *_: object) -> None:
        """Count one more."""
        self.learned += 1
        if self.learned == self.wanted:
            self.has_learned.set()

    def wait(self, wanted: int) -> None:
        """Wait until it has learned so many in all; those of before have been learned."""
        self.has_learned.clear()
        self.wanted = wanted
        if self.learned < wanted:
            assert self.has_learned.wait(10)
        assert self.learned == wanted


def test_an_outcome_is_learned_at_once_and_the_next_after_a_lull() -> None:
    async def story() -> None:
        learner = CountingLearner(1)
        async with running(learner) as owner:
            for wanted in range(1, 60):  # whatever it is at when they come
                for _ in range(wanted % 3):
                    owner.tell(a_ticket(), 5, Ended.FINISHED)
                learner.wait(sum(number % 3 for number in range(wanted + 1)))

    asyncio.run(story())


def test_outcomes_that_come_within_a_lull_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LULL_S", 60.0)

    async def story() -> None:
        learner, rests = CountingLearner(1), threading.Event()
        async with running(learner) as owner:
            await owner.drained()
            sleep = owner._sleep

            def sleeping(timeout_s: float | None) -> None:
                if timeout_s is not None and timeout_s > module.PUBLISH_EVERY_S:
                    rests.set()
                sleep(timeout_s)

            monkeypatch.setattr(owner, "_sleep", sleeping)
            owner.tell(a_ticket(), 5, Ended.FINISHED)
            learner.wait(1)
            assert rests.wait(10)
            for _ in range(module.MANY - 1):
                owner.tell(a_ticket(), 5, Ended.FINISHED)
            assert owner._gate.locked()
            # What is asked is answered all the same, and they go on waiting.
            reply = owner.ask(a_ticket())
            assert reply is not None
            assert await reply is not None
            assert learner.learned == 1

            owner.tell(a_ticket(), 5, Ended.FINISHED)  # now they are many
            learner.wait(1 + module.MANY)
            owner.tell(a_ticket(), 5, Ended.FINISHED)
            await owner.drained()
            assert learner.learned == 2 + module.MANY
            owner.tell(a_ticket(), 5, Ended.FINISHED)
        assert learner.learned == 3 + module.MANY

    asyncio.run(story())


def test_no_wake_up_is_lost_among_pauses_and_lulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 1e-6)
    monkeypatch.setattr(module, "LULL_S", 1e-5)

    async def story() -> None:
        learner = CountingLearner(0)
        async with running(learner) as owner, asyncio.timeout(60):
            for _ in range(400):
                for _ in range(8):
                    owner.tell(a_ticket(), 5, Ended.FINISHED)
                    assert owner.ask(a_ticket()) is not None
                await owner.drained()
            assert learner.learned == 3200

    asyncio.run(story())


def test_what_is_asked_while_it_learns_comes_before_the_next_outcome() -> None:
    steps: list[str] = []

    class Listing(GatedLearner):
        def learn(self, *_: object) -> None:
            self.gate.wait(10)
            steps.append("learn")

        def answer(self, tickets: Sequence[Ticket]) -> list[tuple[Mass, Level] | None]:
            steps.append("answer")
            return [None for _ in tickets]

    async def story() -> None:
        learner = Listing()
        async with running(learner) as owner:
            await owner.drained()
            learner.gate.clear()
            for _ in range(3):
                owner.tell(a_ticket(), 5, Ended.FINISHED)
            reply = owner.ask(a_ticket())
            assert reply is not None
            learner.gate.set()
            await reply
            await owner.drained()
        assert steps.index("answer") <= 1
        assert steps.count("learn") == 3

    asyncio.run(story())


class RestingLearner(GatedLearner):
    """Learns nothing, and hands over a chore instead."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, int]] = []
        self.fails = False

    def learn(self, *_: object) -> Chore:
        """Return a chore that writes down on which thread each step is done."""
        return self

    def run(self) -> None:
        """Do the work."""
        self.steps.append(("run", threading.get_ident()))
        if self.fails:
            raise ArithmeticError("no inverse")

    def keep(self) -> None:
        """Use it."""
        self.steps.append(("keep", threading.get_ident()))


@pytest.mark.parametrize("fails", [False, True])
def test_chores_are_run_elsewhere_and_kept_by_the_owner(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        learner = RestingLearner()
        learner.fails = fails
        async with running(learner) as owner:
            owner.tell(a_ticket(), 5, Ended.FINISHED)
            await owner.drained()
            assert [step for step, _ in learner.steps] == ["run", "keep"]
            assert len({thread for _, thread in learner.steps} | {threading.get_ident()}) == 3

    asyncio.run(story())
    assert ("no inverse" in caplog.text) == fails
