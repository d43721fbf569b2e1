"""The tuner in the gateway: off the loop, bounded, hard to kill."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.policies.base import Policy
from gateway.core.types import BackendState
from gateway.sim.experiment import play
from gateway.sim.recorder import Recorder
from gateway.sim.trace import TraceWorkflow
from gateway.tuner.tuner import Situation, Tuner
from tests.builders import a_backend, a_profile
from tests.tuner.builders import HETERO, a_cell, a_trace

WRONG = PolicySettings(alpha=0.9)


class Gateway:
    """What the tuner needs of one."""

    def __init__(self, settings: PolicySettings = WRONG, policy: str = "hexgen") -> None:
        self.policy = policy
        self.settings = settings
        self.applied: list[Policy] = []
        self.trace: Sequence[TraceWorkflow] = a_trace()

    def situation(self) -> Situation:
        return Situation(backends=HETERO, policy=self.policy, settings=self.settings)

    def apply(self, policy: Policy, settings: PolicySettings) -> None:
        self.applied.append(policy)
        self.settings = settings

    def tuner(
        self,
        make_pool: Callable[[], Executor] | None = lambda: ThreadPoolExecutor(1),
        interval_s: float = 600.0,
    ) -> Tuner:
        ticks = iter(range(10_000))
        return Tuner(
            lambda: self.trace,
            self.situation,
            self.apply,
            lambda: float(next(ticks)),
            interval_s=interval_s,
            max_calls=100,
            make_pool=make_pool,
        )


def test_a_clearly_wrong_alpha_is_replaced_by_a_better_one() -> None:
    gateway = Gateway()
    tuner = gateway.tuner()

    tuning = asyncio.run(tuner.tune_once())

    assert tuning.applied
    assert tuning.finding is not None
    assert gateway.settings == tuning.finding.winner
    assert gateway.settings.alpha is not None
    assert gateway.settings.alpha < 0.9
    assert gateway.applied == [policy_from_name("hexgen", gateway.settings)]
    assert list(tuner.history) == [tuning]
    assert "better by" in tuning.outcome


def test_what_was_found_once_is_left_alone_the_next_time() -> None:
    gateway = Gateway()
    tuner = gateway.tuner()

    async def twice() -> None:
        await tuner.tune_once()
        await tuner.tune_once()

    asyncio.run(twice())

    first, second = tuner.history
    assert first.applied
    assert not second.applied
    assert len(gateway.applied) == 1


def test_the_worker_is_another_process() -> None:
    gateway = Gateway()

    tuning = asyncio.run(gateway.tuner(make_pool=None).tune_once())

    assert tuning.applied


def test_a_worker_that_dies_costs_one_search_and_nothing_else() -> None:
    def doomed() -> Executor:
        return ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=os._exit, initargs=(1,)
        )

    gateway = Gateway()

    tuning = asyncio.run(gateway.tuner(doomed).tune_once())

    assert "worker died" in tuning.outcome
    assert gateway.applied == []


def test_when_the_gateway_is_killed_its_worker_ends_too() -> None:
    killed = """
import os, signal
from gateway.tuner.tuner import modest_worker
modest_worker().submit(os.kill, os.getpid(), signal.SIGKILL).result()
"""

    # Its output ends when nobody is left who could write to it.
    ended = subprocess.run([sys.executable, "-c", killed], stdout=subprocess.PIPE, timeout=20)

    assert ended.returncode == -signal.SIGKILL


def test_the_loop_goes_on_while_a_search_is_under_way() -> None:
    tuner = Gateway().tuner(make_pool=None)

    async def longest_pause() -> float:
        """Return the longest time the loop stood still, as a share of the search's."""
        searching = asyncio.ensure_future(tuner.tune_once())
        began = time.perf_counter()
        longest_s = 0.0
        while not searching.done():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.perf_counter() - before)
            assert tuner.is_searching or searching.done()
        return longest_s / (time.perf_counter() - began)

    assert asyncio.run(longest_pause()) < 0.3


def test_a_search_can_be_cancelled() -> None:
    gateway = Gateway()
    tuner = gateway.tuner(make_pool=None)

    async def cancel_it() -> None:
        searching = asyncio.ensure_future(tuner.tune_once())
        await asyncio.sleep(0.05)
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert not tuner.is_searching

    asyncio.run(cancel_it())

    assert gateway.applied == []


def test_a_policy_that_somebody_changed_meanwhile_is_not_overruled() -> None:
    gateway = Gateway()

    def pool() -> Executor:
        gateway.settings = PolicySettings(alpha=0.1)
        return ThreadPoolExecutor(1)

    tuning = asyncio.run(gateway.tuner(pool).tune_once())

    assert "changed meanwhile" in tuning.outcome
    assert gateway.applied == []


@pytest.mark.parametrize(
    ("policy", "count", "reason"),
    [
        pytest.param("hexgen", 3, "too little traffic", id="too little traffic"),
        pytest.param("least_backlog+fcfs", 60, "no settings to tune", id="nothing to turn"),
    ],
)
def test_where_there_is_nothing_to_tune_it_says_why(policy: str, count: int, reason: str) -> None:
    gateway = Gateway(policy=policy)
    gateway.trace = a_trace(count)

    tuning = asyncio.run(gateway.tuner().tune_once())

    assert reason in tuning.outcome
    assert gateway.applied == []


def test_it_tunes_for_ever_whatever_goes_wrong() -> None:
    gateway = Gateway()
    tuner = gateway.tuner(interval_s=0.001)
    looks = 0
    enough = asyncio.Event()

    def situation() -> Situation:
        nonlocal looks
        looks += 1
        if looks == 3:
            enough.set()
        raise RuntimeError("a bug")

    tuner._situation = situation

    async def run() -> None:
        running = asyncio.ensure_future(tuner.run())
        await enough.wait()
        running.cancel()

    asyncio.run(run())
    assert looks >= 3


def test_a_live_fleet_is_taken_as_it_is_known_now() -> None:
    up = BackendLoad(a_backend("b"))
    up.profile = a_profile(slowness=2.0)
    down = BackendLoad(a_backend("a"), BackendState.DOWN)

    situation = Situation.of([up, down], "hexgen", WRONG)

    [backend] = situation.backends
    assert (backend.id, backend.profile) == ("b", a_profile(slowness=2.0))


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        pytest.param([], "no backend is up", id="nobody is up"),
        pytest.param(
            [
                BackendLoad(a_backend("a", models=frozenset({"x"}))),
                BackendLoad(a_backend("b", models=frozenset({"y"}))),
            ],
            "different models",
            id="two models",
        ),
    ],
)
def test_a_fleet_that_cannot_be_simulated_is_refused(loads: list[BackendLoad], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Situation.of(loads, "hexgen", WRONG)


def test_what_was_served_is_what_it_is_tuned_on() -> None:
    served = play(replace(a_cell(settings=WRONG), rate_per_s=0.5, count=100), keep_log=True)
    recorder = Recorder()
    for now, event, commands in served.log:
        recorder.observe(now, event, commands)
    gateway = Gateway()
    gateway.trace = recorder.trace()

    tuning = asyncio.run(gateway.tuner().tune_once())

    assert tuning.workflows == 100
    assert tuning.applied
