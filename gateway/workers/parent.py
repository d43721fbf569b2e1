"""Parent: starts the scheduler process and the workers, and again whenever one dies or hangs."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.config.settings import Settings
from gateway.mistakes import ConfigError
from gateway.runtime.clock import Clock, MonotonicClock
from gateway.workers.child import Child
from gateway.workers.launch import BEATS, Launch, Order, Role
from gateway.workers.sockets import port_of, refusal, reserve

NOT_STARTED = -1
"""Stands for the exit code of a child that never ran."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a child that has died is started again: doubled each time,"""
STEADY_S = 60.0
"""until one has lived for so long."""
ADDRESS_S = 5.0
"""How long an address may be in use."""
STOP_GRACE_S = 5.0
"""Added to the time that calls have to end, before a child is killed."""

log = logging.getLogger(__name__)


class Parent:
    """One gateway of several processes."""

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        overrides: dict[str, object],
        program: Sequence[str],
        clock: Clock | None = None,
    ) -> None:
        """`program` is what a child runs."""
        self._settings = settings
        self._config = config
        self._overrides = overrides
        self._program = program
        self._clock = clock or MonotonicClock()
        self._children: dict[str, Child] = {}
        self._stopping = asyncio.Event()
        self._steps = 0
        """Signals to stop so far."""
        self._tasks: asyncio.TaskGroup | None = None
        self._ending: asyncio.Task[None] | None = None
        self._code = 0

    async def run(self) -> int:
        """Serve until told to stop; return 0 after a clean stop."""
        settings = self._settings
        reserved = await self._reserve()
        for number, grace_s in (
            (signal.SIGTERM, settings.drain_grace_s),
            (signal.SIGINT, 0.0),
        ):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, grace_s)
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, self._tell, Role.SCHEDULER, Order.RELOAD
        )
        with TemporaryDirectory(prefix="hexsage-") as directory:
            launch = Launch(
                role=Role.SCHEDULER,
                settings=settings,
                config=self._config,
                overrides=self._overrides,
                directory=Path(directory),
                port=port_of(reserved),
            )
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                scheduler = tasks.create_task(self._keep(Role.SCHEDULER, launch))
                launch = replace(launch, role=Role.WORKER)
                workers = [
                    tasks.create_task(
                        self._keep(f"{Role.WORKER} {number}", replace(launch, number=number))
                    )
                    for number in range(settings.workers)
                ]
                log.info("%d workers at %s:%d", settings.workers, settings.host, launch.port)
                await asyncio.wait(workers)
                self._tell(Role.SCHEDULER, Order.STOP)
                await scheduler
                if self._ending is not None:
                    self._ending.cancel()
        for sock in reserved:
            sock.close()
        return self._code

    async def _reserve(self) -> list[socket.socket]:
        """Reserve the address; children of a parent that was just killed may still be going."""
        settings, until = self._settings, self._clock.now() + ADDRESS_S
        while True:
            try:
                return reserve(settings.host, settings.port)
            except OSError as error:
                if self._clock.now() > until:
                    told = refusal(settings.host, settings.port, error)
                    raise ConfigError([told]) from None
            await asyncio.sleep(ADDRESS_S / 50)

    async def _keep(self, name: str, launch: Launch) -> None:
        """Have a child of this name as long as the gateway is not stopping."""
        pause_s = FIRST_PAUSE_S
        is_first = True
        while not self._stopping.is_set():
            began_at = self._clock.now()
            is_ready, code = await self._run_child(name, launch)
            if self._stopping.is_set():
                break
            if is_first and not is_ready:
                log.error("%s could not be started", name)
                self._code = 1
                self._stop_now()
                break
            is_first = False
            launch = replace(launch, restarts=launch.restarts + 1)
            if self._clock.now() - began_at >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.warning("%s has ended (%d): another one in %g s", name, code, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _run_child(self, name: str, launch: Launch) -> tuple[bool, int]:
        """Run a child to its end; return whether it was ready once, and its exit code."""
        try:
            child = await Child.start(self._program, launch)
        except OSError as error:  # no memory, no process: the next try may find some
            log.error("%s could not be started: %s", name, error)  # noqa: TRY400 - no bug
            return False, NOT_STARTED
        self._children[name] = child
        hang_s = self._settings.hang_s
        while not (await asyncio.wait([child.ended], timeout=hang_s / BEATS or None))[0]:
            if child.tick() and not self._stopping.is_set():  # that has a time limit of its own
                log.error("%s gives no sign of life (hang_s: %g): it is killed", name, hang_s)
                child.kill()
        del self._children[name]
        child.close()
        return child.is_ready, child.ended.result()

    def _signalled(self, grace_s: float) -> None:
        """Stop gracefully; a second signal stops at once."""
        self._steps += 1
        if self._steps == 1:
            assert self._tasks is not None
            self._ending = self._tasks.create_task(self._stop(grace_s))
        else:
            self._stop_now()

    async def _stop(self, grace_s: float) -> None:
        self._tell(Role.SCHEDULER, Order.WITHDRAW)
        if grace_s:
            log.info("stopping: not ready any more, and for %g s new calls are taken", grace_s)
            await asyncio.sleep(grace_s)
        self._stopping.set()
        self._tell(Role.SCHEDULER, Order.REFUSE)
        for name in self._children:
            if name != Role.SCHEDULER:
                self._tell(name, Order.STOP)
        await asyncio.sleep(self._settings.drain_timeout_s + STOP_GRACE_S)
        self._stop_now()

    def _stop_now(self) -> None:
        self._stopping.set()
        for child in self._children.values():
            child.kill()

    def _tell(self, name: str, order: Order) -> None:
        child = self._children.get(name)
        if child is not None:
            child.tell(order)


def child_program() -> list[str]:
    """Return what children run: this very Python, and this very package."""
    return [sys.executable, "-m", "gateway.cli.child"]
