"""Reloader: reads the configuration anew when it is told to, or when its files change.

A bad file changes nothing: what was in force stays, and the log says what is wrong.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gateway.config.settings import Settings
from gateway.core.events import Reconfigured
from gateway.keys_file import KeyEntry, read_keys
from gateway.mistakes import ConfigError

log = logging.getLogger(__name__)

Apply = Callable[[Settings, Sequence[KeyEntry]], Sequence[str]]
"""Puts settings in force, in one step; returns what needs a restart. After a ConfigError nothing
has changed."""
RELOADED = frozenset(
    {
        "backends",
        "health",
        "models",
        "policy",
        "queue",
        "retries",
        "slo",
        "timeouts",
        "workflows",
    }
)
"""Settings that take effect without a restart; the content of `keys_file` does, too."""

Stamp = tuple[int, int, int] | None


def rules_of(settings: Settings, keys: Sequence[KeyEntry]) -> Reconfigured:
    """Return what the scheduler is to go by."""
    deadline_ms = settings.slo.default_deadline_ms
    shares = {key.owner: key.queue_share for key in keys if key.queue_share is not None}
    return Reconfigured(
        limits=replace(settings.queue.to_core(), tenant_shares=shares),
        weights={key.owner: key.weight for key in keys},
        health=settings.health.to_core(),
        retries=settings.retries.to_core(),
        workflows=settings.workflow_specs,
        default_deadline_s=None if deadline_ms is None else deadline_ms / 1000,
    )


class Reloader:
    """One reload at a time; they follow each other."""

    def __init__(
        self, load: Callable[[], Settings], apply: Apply, paths: Callable[[], Sequence[Path]]
    ) -> None:
        """`paths` are the files that `load`, and who reads the keys, have just read."""
        self._load = load
        self._apply = apply
        self._paths = paths
        self._seen = _stamps(paths())
        self._turn = asyncio.Lock()
        self.refused = 0
        """Reloads that changed nothing because something was wrong."""

    async def reload(self) -> Sequence[str]:
        """Put in force what the files say now; return what needs a restart, or ConfigError."""
        async with self._turn:
            try:
                settings, keys = await asyncio.to_thread(self._read)
                needs_restart = self._apply(settings, keys)
            except ConfigError as error:
                self.refused += 1
                told = "; ".join(error.mistakes)  # one line a record
                log.error("the configuration stays as it was: %s", told)  # noqa: TRY400 - no bug
                raise
        log.info("the configuration was read anew")
        if needs_restart:
            log.warning("changed, but only from the next start on: %s", ", ".join(needs_restart))
        return needs_restart

    async def watch(self, every_s: float) -> None:
        """Reload whenever one of the files is another, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            now = await asyncio.to_thread(_stamps, self._paths())
            if now != self._seen:
                self._seen = now
                try:
                    await self.reload()
                except ConfigError:
                    continue  # it is in the log; the next change may be better

    def _read(self) -> tuple[Settings, tuple[KeyEntry, ...]]:
        settings = self._load()
        return settings, read_keys(settings.keys_file) if settings.keys_file else ()


def _stamps(paths: Sequence[Path]) -> list[Stamp]:
    """Return what tells one content of each file from another; links are followed."""
    stamps: list[Stamp] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return stamps
