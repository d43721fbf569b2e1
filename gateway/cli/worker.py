"""A worker of `hexsage serve --workers N`."""

import os
import socket
import sys
from math import ceil
from types import FrameType

import uvicorn

from gateway.cli.listening import possible_connections, server_config
from gateway.runtime.garbage import calm
from gateway.workers.launch import HTTP, HUB, Launch, Order, Orders, keep_saying_ready
from gateway.workers.vitals import Vitals
from gateway.workers.worker import Worker


def server_of(launch: Launch) -> "WorkerServer":
    """Return the server of a worker."""
    settings, directory = launch.settings, launch.directory
    vitals = Vitals(launch.number, launch.restarts)
    worker = Worker(settings, directory / HUB, directory / HTTP, vitals)
    connections = possible_connections(ceil(settings.limits.max_connections / settings.workers))
    config = server_config(
        worker.app, settings, settings.host, launch.port, connections, lifespan="on"
    )
    server = WorkerServer(config, settings.hang_s)
    vitals.connections = lambda: len(server.server_state.connections)
    return server


class WorkerServer(uvicorn.Server):
    """Serves clients."""

    def __init__(self, config: uvicorn.Config, hang_s: float) -> None:
        super().__init__(config)
        self._hang_s = hang_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, once the scheduler process is there."""
        await Orders(self._obey).listen(sys.stdin.fileno())
        await super().startup(sockets)
        calm()
        keep_saying_ready(self._hang_s)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop gracefully, however often it is told."""
        self._obey(Order.STOP)

    def _obey(self, order: Order) -> None:
        if order is Order.GO or not self.started:
            os._exit(1)  # at once; or it waits for a scheduler process, and serves nobody
        self.should_exit = True
