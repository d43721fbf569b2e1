"""Tuning the live gateway: what it records, tries, and changes of its own policy."""

from collections.abc import Callable
from dataclasses import asdict

from gateway.config.scheduling import PolicyEntry, TunerEntry
from gateway.core.policies import PolicySettings
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.runtime.clock import Clock
from gateway.sim.recorder import Recorder
from gateway.tuner.search import Objective
from gateway.tuner.tuner import Situation, Tuner


def live_tuner(
    entry: TunerEntry,
    scheduler: Scheduler,
    recorder: Recorder,
    clock: Clock,
    present: Callable[[], PolicyEntry],
    change: Callable[[dict[str, object]], None],
) -> Tuner:
    """Return a tuner of the gateway's own traffic.

    `present` tells the policy in force, `change` puts another in force and remembers it.
    """

    def situation() -> Situation:
        policy = present()
        return Situation.of(scheduler.fleet.loads.values(), policy.name, policy.settings)

    def apply(policy: Policy, settings: PolicySettings) -> None:
        change({"name": policy.name, **asdict(settings)})

    return Tuner(
        recent=lambda: recorder.trace(clock.now() - entry.window_s),
        situation=situation,
        apply=apply,
        now=clock.now,
        interval_s=entry.interval_s,
        objective=Objective(entry.objective),
    )
