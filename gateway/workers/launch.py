"""What the parent and its children say to each other: how to begin, that it has begun, what to do.

A child's standard input begins with its Launch; orders follow, a line each. Its end means that the
parent is gone, and the child goes at once. On its standard output the child says that it is ready,
again and again: that is its pulse.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from gateway.config.settings import Settings

HUB = "hub.sock"
HTTP = "http.sock"
READY = b"ready\n"
BEATS = 5
"""A child says so this often in the time after which its silence means that it hangs."""
_LENGTH_BYTES = 4


class Role(StrEnum):
    """What a child is."""

    SCHEDULER = "scheduler"
    WORKER = "worker"


class Order(StrEnum):
    """What a parent may want."""

    WITHDRAW = "withdraw"
    """Be not ready any more."""
    REFUSE = "refuse"
    """Take no new calls."""
    STOP = "stop"
    """End, once what is here has ended."""
    RELOAD = "reload"
    GO = "go"
    """End at once. Nobody says so: the parent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a child begins."""

    role: Role
    settings: Settings
    """As they were when the gateway started."""
    config: Path | None
    overrides: dict[str, object]
    """The file and the command line that settings are read from again."""
    directory: Path
    """Where the scheduler process's sockets are. Nobody else may look into it."""
    port: int
    number: int = 0
    """Of a worker, its place among them."""
    restarts: int = 0
    """How many there have been in its place before."""

    def packed(self) -> bytes:
        """Return it as it is sent."""
        # Settings that were read from files are of a class that only this process knows.
        settings = Settings.model_construct(
            **{name: getattr(self.settings, name) for name in Settings.model_fields}
        )
        body = pickle.dumps(replace(self, settings=settings))
        return len(body).to_bytes(_LENGTH_BYTES, "big") + body

    @staticmethod
    def read(descriptor: int) -> "Launch":
        """Read what a parent has sent, and no byte more."""
        length = int.from_bytes(_exactly(descriptor, _LENGTH_BYTES), "big")
        launch = pickle.loads(_exactly(descriptor, length))
        assert isinstance(launch, Launch)
        return launch


def _exactly(descriptor: int, length: int) -> bytes:
    got = b""
    while len(got) < length:
        piece = os.read(descriptor, length - len(got))
        if not piece:
            raise EOFError("the parent is gone")
        got += piece
    return got


def keep_saying_ready(hang_s: float) -> None:
    """Tell the parent that this child serves, for as long as its event loop turns.

    With a `hang_s` of 0, once.
    """
    output = sys.stdout.fileno()
    os.set_blocking(output, False)
    with suppress(OSError):  # a parent that is stopped reads nothing; one that is gone is noticed
        os.write(output, READY)
    if hang_s:
        asyncio.get_running_loop().call_later(hang_s / BEATS, keep_saying_ready, hang_s)


class Orders(asyncio.Protocol):
    """A child's ear for its parent: `obey` is called for each order, and with GO at the end."""

    def __init__(self, obey: Callable[[Order], None]) -> None:
        self._obey = obey
        self._unread = b""

    async def listen(self, descriptor: int) -> None:
        """Begin to listen."""
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(Order(line.decode()))

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        self._obey(Order.GO)
