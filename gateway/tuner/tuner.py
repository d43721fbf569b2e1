"""Tuner: every few minutes, try the policy's settings on the recent traffic; apply what wins.

The simulations run in a worker process of low priority, one at a time, started for the purpose and
gone afterwards; the event loop only looks at the traffic and the result. A worker that dies costs
one search. Everything that came of it stays in `history`.
"""

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread

from gateway.core.load import BackendLoad
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.policies.base import Policy
from gateway.core.types import Backend, BackendState
from gateway.sim.experiment import measure_all
from gateway.sim.simulator import MODEL
from gateway.sim.trace import TraceWorkflow
from gateway.tuner.search import (
    MAX_CALLS,
    Finding,
    Objective,
    Search,
    candidates,
    cell_of,
    search,
)

MAX_HISTORY = 100
NICENESS = 19

log = logging.getLogger(__name__)

Apply = Callable[[Policy, PolicySettings], None]
"""Makes the gateway decide by this policy from now on; it was built from these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is to be tuned: the backends as they are known now, the policy and its settings."""

    backends: tuple[Backend, ...]
    policy: str
    settings: PolicySettings

    @classmethod
    def of(cls, loads: Iterable[BackendLoad], policy: str, settings: PolicySettings) -> "Situation":
        """Return the situation of a live fleet: who is up, with corrected profiles.

        ValueError if the backends serve different models: a trace does not tell them apart.
        """
        up = [load for load in loads if load.state is BackendState.UP]
        if not up:
            raise ValueError("no backend is up")
        if len({load.backend.models for load in up}) > 1:
            raise ValueError("backends serve different models")
        one_model = frozenset({MODEL})
        backends = [replace(b.backend, profile=b.profile, models=one_model) for b in up]
        return cls(
            backends=tuple(sorted(backends, key=lambda backend: backend.id)),
            policy=policy,
            settings=settings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """One search, as the admin API shows it."""

    at: float
    took_s: float
    workflows: int
    """Recorded workflows and single calls that it could look at."""
    outcome: str
    """A sentence."""
    applied: bool = False
    finding: Finding | None = None
    """None: there was nothing to search, or the worker died."""


class Tuner:
    """Owned by the event loop. `run` tunes for ever; `tune_once` is for those who cannot wait."""

    def __init__(
        self,
        recent: Callable[[], Sequence[TraceWorkflow]],
        situation: Callable[[], Situation],
        apply: Apply,
        now: Callable[[], float],
        *,
        interval_s: float = 600.0,
        objective: Objective = Objective.P95,
        max_calls: int = MAX_CALLS,
        make_pool: Callable[[], Executor] | None = None,
    ) -> None:
        if interval_s <= 0:
            raise ValueError(f"interval_s must be > 0, not {interval_s}")
        self._recent = recent
        self._situation = situation
        self._apply = apply
        self._now = now
        self._max_calls = max_calls
        self._make_pool = make_pool or modest_worker
        self._lock = asyncio.Lock()
        self.interval_s = interval_s
        self.objective = objective
        self.history: deque[Tuning] = deque(maxlen=MAX_HISTORY)
        """The latest searches, newest last."""

    @property
    def is_searching(self) -> bool:
        """Whether a search is under way."""
        return self._lock.locked()

    async def run(self) -> None:
        """Tune every `interval_s` until cancelled. Nothing that goes wrong ends it."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.tune_once()
            except Exception:
                log.exception("tuning failed")

    async def tune_once(self) -> Tuning:
        """Search once, apply what wins, and return what came of it, which is in `history` too."""
        async with self._lock:
            began_at = self._now()
            trace = self._recent()
            outcome, finding, applied = await self._search(trace)
            tuning = Tuning(
                at=began_at,
                took_s=self._now() - began_at,
                workflows=len(trace),
                outcome=outcome,
                applied=applied,
                finding=finding,
            )
            self.history.append(tuning)
            log.info("tuning: %s", outcome)
            return tuning

    async def _search(self, trace: Sequence[TraceWorkflow]) -> tuple[str, Finding | None, bool]:
        try:
            before = self._situation()
            plan = self._plan(before, trace)
        except ValueError as error:
            return f"nothing to tune: {error}", None, False
        pool = self._make_pool()
        try:
            finding = await asyncio.to_thread(search, plan, partial(measure_all, pool=pool))
        except BrokenExecutor:
            log.warning("the tuner's worker died", exc_info=True)
            return "the worker died; the policy stays as it is", None, False
        finally:
            # A cancelled search ends with the simulation under way, half a second at most.
            pool.shutdown(wait=False, cancel_futures=True)
        if finding.winner is None:
            return told(finding), finding, False
        if self._is_stale(before):
            return "the policy was changed meanwhile; it stays as it is", finding, False
        self._apply(policy_from_name(finding.policy, finding.winner), finding.winner)
        return told(finding), finding, True

    def _plan(self, situation: Situation, trace: Sequence[TraceWorkflow]) -> Search:
        if not candidates(situation.policy, situation.settings):
            raise ValueError(f"policy '{situation.policy}' has no settings to tune")
        base = cell_of(
            trace, situation.backends, situation.policy, situation.settings, self._max_calls
        )
        return Search(base=base, objective=self.objective)

    def _is_stale(self, before: Situation) -> bool:
        try:
            now = self._situation()
        except ValueError:
            return True
        return (now.policy, now.settings) != (before.policy, before.settings)


def told(finding: Finding) -> str:
    """Return the finding as a sentence."""
    gain = finding.gain
    if gain is None:
        return f"leave it: nothing looks better than {finding.policy} as it is"
    figures = f"{finding.objective} better by {gain.mean:.1%} [{gain.low:.1%}, {gain.high:.1%}]"
    if finding.winner is None:
        return f"leave it: {finding.label} looked best, but is within noise ({figures})"
    return f"{finding.label}: {figures}"


def modest_worker() -> Executor:
    """Return a pool of one process that yields to everything else on the machine."""
    return ProcessPoolExecutor(
        max_workers=1, mp_context=get_context("spawn"), initializer=be_modest
    )


def be_modest() -> None:
    """Let others go first; leave Ctrl-C to the parent; end with it, however it ends."""
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker holds both ends of its queues: it would wait for a parent that was killed for ever.
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
