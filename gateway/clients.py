"""Clients: what calls to each backend go through. Who is replaced is closed when it is idle."""

import asyncio
import ssl
from collections.abc import Callable

from gateway.backends.base import Bounds
from gateway.backends.dialects import dialect_of
from gateway.backends.gathering import GatheringClient
from gateway.backends.http_client import HttpClient, Timeouts
from gateway.config.backends import BackendEntry
from gateway.config.serving import LimitsEntry
from gateway.config.timeouts import TimeoutsEntry
from gateway.config.tls import ClientTlsEntry
from gateway.core.types import BackendId

GRACE_S = 5.0
"""Added to the longest that a call may take before the client that it may still use is closed."""
PULSE_S = 1.0
"""How often it is said that streams go on."""


class Clients:
    """`by_name` is the driver's, and changes in place."""

    def __init__(self, limits: LimitsEntry, heard: Callable[[BackendId], None]) -> None:
        """`heard` is told now and then of a backend whose streams go on."""
        self.by_name: dict[BackendId, HttpClient] = {}
        self._heard = heard
        self._bounds = Bounds(
            answer_bytes=limits.max_answer_bytes,
            error_bytes=limits.max_error_bytes,
            event_bytes=limits.max_event_bytes,
        )
        self._retired: dict[HttpClient, BackendId] = {}
        """Nothing new goes to these, but calls may still be under way."""
        self._tasks: asyncio.TaskGroup | None = None
        self._listening: asyncio.Task[None] | None = None

    def put(
        self,
        entry: BackendEntry,
        timeouts: TimeoutsEntry,
        on_unreachable: Callable[[], None],
    ) -> None:
        """Have calls to a backend go through a new client; OSError if its TLS files are none."""
        name = BackendId(entry.name)
        client = GatheringClient(
            entry.url,
            dialect_of(entry.kind, entry.priority_scheduling, entry.adapters),
            Timeouts(**(timeouts.model_dump() | entry.timeouts.given)),
            api_key=entry.api_key,
            on_unreachable=on_unreachable,
            bounds=self._bounds,
            tls=tls_of(entry.tls),
        )
        self.retire(name)
        self.by_name[name] = client

    def retire(self, name: BackendId) -> None:
        """Close a backend's client when the last call that may use it must be over.

        Until then it stays where it is: a call may just have been given its turn.
        """
        client = self.by_name.get(name)
        if client is not None and self._tasks is not None:
            self._retired[client] = name
            self._close_later(client, client.longest_call_s + GRACE_S)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to listen whose streams go on."""
        self._tasks = tasks
        self._listening = tasks.create_task(self._listen())

    def stop(self) -> None:
        """Listen no more."""
        self._tasks = None
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        """Close every connection."""
        for client in {*self.by_name.values(), *self._retired}:
            await client.close()
        self._retired.clear()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            await asyncio.sleep(PULSE_S)
            under_way = [*self.by_name.items(), *((n, old) for old, n in self._retired.items())]
            for name in {name for name, client in under_way if client.gives_sign(since)}:
                self._heard(name)

    def _close_later(self, client: HttpClient, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._close_retired, client)

    def _close_retired(self, client: HttpClient) -> None:
        if self._tasks is None or client not in self._retired:
            return
        left_s = client.busy_until - asyncio.get_running_loop().time()
        if left_s > 0:  # its model's calls may take longer
            self._close_later(client, left_s + GRACE_S)
            return
        name = self._retired.pop(client)
        if self.by_name.get(name) is client:
            del self.by_name[name]
        self._tasks.create_task(client.close())


def tls_of(entry: ClientTlsEntry) -> ssl.SSLContext | None:
    """Return how a backend is spoken to over TLS; None: as the system does it."""
    if entry.ca_file is None and entry.cert_file is None:
        return None
    context = ssl.create_default_context(cafile=entry.ca_file)
    if entry.cert_file is not None:
        context.load_cert_chain(entry.cert_file, entry.key_file)
    return context
