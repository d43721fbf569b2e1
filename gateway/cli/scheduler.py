"""The scheduler process of `hexsage serve --workers N`."""

import logging
import os
import socket
import sys
from types import FrameType

import uvicorn

from gateway.api.protocol import guarded
from gateway.app import Gateway
from gateway.cli.serve import loader
from gateway.cli.server import Server
from gateway.config.settings import Settings
from gateway.mistakes import ConfigError
from gateway.workers.hub import Hub
from gateway.workers.launch import HTTP, HUB, Launch, Order, Orders, keep_saying_ready
from gateway.workers.scheduler import hub_of

log = logging.getLogger(__name__)


def server_of(launch: Launch) -> "SchedulerServer":
    """Return the server of the scheduler process."""
    load = loader(launch.config, launch.overrides)
    try:
        settings = load()
    except ConfigError as error:
        # Whoever is started again must not fail for a file that was not in force before.
        log.error("as it was at the start, for the configuration is wrong now:\n%s", error)  # noqa: TRY400 - no bug
        settings = launch.settings
    gateway = Gateway(settings, load=load, config_path=launch.config)
    return SchedulerServer(gateway, settings, hub_of(gateway, settings), launch)


class SchedulerServer(Server):
    """Decides for all workers, and answers what they are asked besides calls. Only its parent
    stops it: workers must end first, for their calls need it."""

    def __init__(self, gateway: Gateway, settings: Settings, hub: Hub, launch: Launch) -> None:
        config = uvicorn.Config(
            gateway.app,
            uds=str(launch.directory / HTTP),
            loop="uvloop",
            http=guarded(),
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
        # The parent's: what the file says meanwhile is not for this child to know.
        self._hang_s = launch.settings.hang_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await Orders(self._obey).listen(sys.stdin.fileno())
        await super().startup(sockets)
        if self.should_exit:
            return
        await self._hub.listen(self._hub_path)
        keep_saying_ready(self._hang_s)

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
