"""What each process of `hexsage serve --workers N` runs: a worker, or the scheduler process."""

import logging
import os
import socket
import sys
from math import ceil
from types import FrameType

import uvicorn

from gateway.api.protocol import Protocol
from gateway.app import Gateway
from gateway.cli.serve import Server, loader, possible_connections, server_config
from gateway.config import ConfigError, Settings
from gateway.telemetry.logs import set_up
from gateway.workers.hub import Hub
from gateway.workers.launch import HTTP, HUB, READY, Launch, Order, Orders, Role
from gateway.workers.scheduler import hub_of
from gateway.workers.sockets import shared
from gateway.workers.worker import Worker

log = logging.getLogger(__name__)


def main() -> int:
    """Be what the parent wants; return 0 after a clean stop."""
    launch = Launch.read(sys.stdin.fileno())
    set_up(launch.settings.log.format, launch.settings.log.level, launch.role)
    try:
        if launch.role is Role.SCHEDULER:
            _scheduler(launch).run()
        else:
            _worker(launch).run(shared(launch.settings.host, launch.port))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _scheduler(launch: Launch) -> "SchedulerServer":
    load = loader(launch.config, launch.overrides)
    try:
        settings = load()
    except ConfigError as error:
        # Whoever is started again must not fail for a file that was not in force before.
        log.error("as it was at the start, for the configuration is wrong now:\n%s", error)  # noqa: TRY400 - no bug
        settings = launch.settings
    gateway = Gateway(settings, load=load, config_path=launch.config)
    return SchedulerServer(gateway, settings, hub_of(gateway, settings), launch)


def _worker(launch: Launch) -> "WorkerServer":
    settings, directory = launch.settings, launch.directory
    worker = Worker(settings, directory / HUB, directory / HTTP)
    connections = possible_connections(ceil(settings.limits.max_connections / settings.workers))
    return WorkerServer(
        server_config(worker.app, settings, settings.host, launch.port, connections, lifespan="on")
    )


def _say_ready() -> None:
    os.write(sys.stdout.fileno(), READY)


class SchedulerServer(Server):
    """Decides for all workers, and answers what they are asked besides calls. Only its parent
    stops it: workers must end first, for their calls need it."""

    def __init__(self, gateway: Gateway, settings: Settings, hub: Hub, launch: Launch) -> None:
        config = uvicorn.Config(
            gateway.app,
            uds=str(launch.directory / HTTP),
            loop="uvloop",
            http=Protocol,
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            log_level=settings.log.level,
            timeout_graceful_shutdown=1,
        )
        super().__init__(gateway, settings, config)
        self._hub = hub
        self._hub_path = launch.directory / HUB

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await Orders(self._obey).listen(sys.stdin.fileno())
        await super().startup(sockets)
        await self._hub.listen(self._hub_path)
        _say_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of workers, if there are any, then stop."""
        self._hub.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Do not heed signals."""

    def _obey(self, order: Order) -> None:
        match order:
            case Order.WITHDRAW:
                self._gateway.withdraw()
            case Order.REFUSE:
                self._gateway.begin_shutdown()
            case Order.RELOAD:
                self._reload()
            case Order.STOP:
                self.should_exit = True
            case Order.GO:
                os._exit(1)  # another gateway may have begun, and what is on disk is its


class WorkerServer(uvicorn.Server):
    """Serves clients."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, once the scheduler process is there."""
        await Orders(self._obey).listen(sys.stdin.fileno())
        await super().startup(sockets)
        _say_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop gracefully, however often it is told."""
        self._obey(Order.STOP)

    def _obey(self, order: Order) -> None:
        if order is Order.GO or not self.started:
            os._exit(1)  # at once; or it waits for a scheduler process, and serves nobody
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
