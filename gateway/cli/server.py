"""Server: the gateway of one process, on its way through signals, or its scheduler process."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from gateway.api.fleet import BadSettings
from gateway.app import Gateway
from gateway.cli.listening import possible_connections, server_config
from gateway.config.settings import Settings
from gateway.runtime.garbage import calm

ADMIN_CONNECTIONS = 256

log = logging.getLogger(__name__)


def server_of(settings: Settings, load: Callable[[], Settings], path: Path | None) -> "Server":
    """Return a server of a gateway that is one process; ConfigError for files that are none."""
    gateway = Gateway(settings, load=load, config_path=path)
    connections = possible_connections(settings.limits.max_connections)
    config = server_config(
        gateway.app, settings, settings.host, settings.port, connections, lifespan="on"
    )
    return Server(gateway, settings, config)


class Server(uvicorn.Server):
    """uvicorn, telling the gateway of a signal before it acts on it."""

    def __init__(self, gateway: Gateway, settings: Settings, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._grace_s = settings.drain_grace_s
        self._is_leaving = False
        self.exit_code = 0
        """What the process is to end with; uvicorn has none for an admin port that is taken."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._admin: uvicorn.Server | None = None
        admin = settings.admin
        if admin.port is not None:
            self._admin = uvicorn.Server(
                server_config(
                    gateway.admin_app, settings, admin.host, admin.port, ADMIN_CONNECTIONS
                )
            )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)
        calm()
        if self._admin is not None and self.started:
            self._admin.lifespan = self._admin.config.lifespan_class(self._admin.config)
            try:
                await self._admin.startup()
            except SystemExit as stop:  # its address is taken, which the log says by now
                self.exit_code, self.should_exit = int(stop.code or 0), True
                return
            await self._admin.on_tick(0)  # the headers of every answer are made there
            self.should_exit |= self._admin.should_exit
        if self.started and not self.should_exit and self.config.uds is None:
            own, admin = address_of(self), address_of(self._admin or self)
            log.info("OpenAI clients: %s/v1, dashboard: %s/dashboard", own, admin)

    async def on_tick(self, counter: int) -> bool:
        """Do what is due now and then."""
        if self._admin is not None and self._admin.started:
            await self._admin.on_tick(counter)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs end, as far as there is time."""
        await super().shutdown(sockets)
        if self._admin is not None and self._admin.started:
            await self._admin.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop gracefully; a second signal stops at once."""
        # uvicorn's own would raise the signal again in the end: a clean stop is no death.
        self.force_exit = self._is_leaving
        if self._loop is None:
            self.should_exit = True
        else:
            # A signal may strike in the middle of a decision: the scheduler hears of it after.
            has_grace = sig == signal.SIGTERM and not self._is_leaving
            self._loop.call_soon_threadsafe(self._leave, self._grace_s if has_grace else 0.0)
        self._is_leaving = True

    def _leave(self, grace_s: float) -> None:
        """Say that the end is near; close the door `grace_s` later."""
        self._gateway.withdraw()
        if grace_s:
            log.info(
                "stopping: not ready any more, and for %g s new calls are still taken", grace_s
            )
            asyncio.get_running_loop().call_later(grace_s, self._close_door)
        else:
            self._close_door()

    def _close_door(self) -> None:
        self._gateway.begin_shutdown()
        self.should_exit = True

    def _reload(self) -> None:
        task = asyncio.ensure_future(self._reload_quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_quietly(self) -> None:
        with suppress(BadSettings):  # it is in the log
            await self._gateway.operations.reload()


def address_of(server: uvicorn.Server) -> str:
    """Return the URL of a server that listens, with the port that it got."""
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    scheme = "https" if server.config.is_ssl else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
