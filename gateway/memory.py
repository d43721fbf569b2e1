"""Memory: what the gateway has learned, kept in `state_dir` and put back at start."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.config.scheduling import PolicyEntry
from gateway.core.events import Event, PolicyChanged
from gateway.core.memory import memory_of, recall
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.state import StateFile

SAVE_EVERY_S = 30.0
JOURNAL = "lengths.journal"
SCHEDULER = "scheduler.json"

log = logging.getLogger(__name__)


class Memory:
    """The scheduler's part; the length predictor keeps a journal of its own beside it.

    A policy that was changed at run time is put back as long as the configured one is the same.
    """

    def __init__(self, directory: Path, scheduler: Scheduler, configured: PolicyEntry) -> None:
        self._file = StateFile(directory / SCHEDULER)
        self._scheduler = scheduler
        self._configured = configured
        self._changed: dict[str, object] = {}
        """What of the policy was changed at run time."""

    def restore(self, feed: Callable[[Event], None], build: Callable[..., Policy]) -> None:
        """Learn again what an earlier process knew. `build` makes a policy of changes."""
        saved = self._file.read()
        if saved is None:
            return
        scheduler = self._scheduler
        try:
            recall(saved.get("scheduler"), scheduler.fleet, scheduler.workflows.templates)
        except ValueError as error:
            self._file.put_aside(str(error))
            return
        policy = saved.get("policy")
        if not isinstance(policy, dict) or policy.get("configured") != self._told():
            return
        changed = policy.get("changed")
        if isinstance(changed, dict) and changed:
            try:
                feed(PolicyChanged(build(changed)))
            except ValueError as error:
                log.warning("the policy in %s is none any more: %s", SCHEDULER, error)
            else:
                self._changed = changed

    def policy_changed(self, changes: dict[str, object]) -> None:
        """Somebody changed the policy at run time."""
        self._changed = changes

    def policy_configured(self, configured: PolicyEntry) -> None:
        """The configuration has another policy now."""
        self._configured = configured
        self._changed = {}

    async def save(self) -> None:
        """Write everything down. Trouble with the disk is logged, no more."""
        scheduler = self._scheduler
        content = {
            "scheduler": memory_of(scheduler.fleet, scheduler.workflows.templates),
            "policy": {"configured": self._told(), "changed": self._changed},
        }
        try:
            await asyncio.to_thread(self._file.write, content)
        except OSError as trouble:
            log.warning("what was learned could not be saved: %s", trouble)

    async def keep(self) -> None:
        """Save now and then, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    def _told(self) -> dict[str, object]:
        return self._configured.model_dump(mode="json")
