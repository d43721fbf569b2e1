"""client_present: cancel what is done for a client when it goes away, or takes nothing any more."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Message, Receive, Send

PATIENCE_S = 60.0
"""How long a client may leave what it is sent lying."""


PRESENCE = "presence"
"""Where the server leaves, in the scope's state, the Presence of the request's client."""


class Presence:
    """Whether the other end of a connection is there; who asks is called when it goes."""

    __slots__ = ("_is_gone", "_told")

    def __init__(self) -> None:
        self._is_gone = False
        self._told: set[Callable[[], None]] = set()

    def gone(self) -> None:
        """It is not there any more."""
        self._is_gone = True
        for tell in list(self._told):
            tell()

    def tell(self, tell: Callable[[], None]) -> None:
        """Have this called once it goes; soon, if it has gone already."""
        self._told.add(tell)
        if self._is_gone:
            asyncio.get_running_loop().call_soon(self._tell, tell)

    def do_not_tell(self, tell: Callable[[], None]) -> None:
        """Do not have it called any more."""
        self._told.discard(tell)

    def _tell(self, tell: Callable[[], None]) -> None:
        if tell in self._told:
            tell()


class ClientLeft(Exception):
    """The client closed its connection before it had its answer, or stopped reading it."""


class client_present:  # noqa: N801 - used like asyncio.timeout
    """`async with client_present(receive) as client:` cancels its body when the client leaves.

    What leaves the block is then ClientLeft, whether the request waits, connects or streams. Where
    the server says who is there (`presence`), nothing runs meanwhile; elsewhere one task for each
    request watches, and nobody else may receive. A client that does not read is noticed by one
    timer, not one a write.
    """

    __slots__ = (
        "_has_left",
        "_loop",
        "_patience_s",
        "_presence",
        "_sending_since",
        "_task",
        "_timer",
        "_watcher",
    )

    def __init__(
        self,
        receive: Receive,
        patience_s: float = PATIENCE_S,
        presence: Presence | None = None,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = task.get_loop()
        self._has_left = False
        self._patience_s = patience_s
        self._sending_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._presence = presence
        self._watcher: asyncio.Future[None] | None = None
        if presence is None:
            self._watcher = asyncio.ensure_future(self._watch(receive))
        else:
            presence.tell(self._leave)

    async def __aenter__(self) -> "client_present":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None or self._presence is not None:
            self.answered()
        if self._timer is not None:
            self._timer.cancel()
        if self._has_left:
            self._task.uncancel()
            raise ClientLeft from None

    def answered(self) -> None:
        """The answer is about to end: from here on a closed connection is no loss."""
        if self._watcher is not None:
            self._watcher.cancel()
        elif self._presence is not None:
            self._presence.do_not_tell(self._leave)
            self._presence = None

    async def send(self, send: Send, message: Message) -> None:
        """Send a part of the answer; a client that does not take it in time has left."""
        self._sending_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s, self._check)
        await send(message)
        self._sending_since = None

    def _check(self) -> None:
        now, since = self._loop.time(), self._sending_since
        if since is not None and now - since >= self._patience_s:
            self._leave()
            return
        waited_s = 0.0 if since is None else now - since
        self._timer = self._loop.call_later(self._patience_s - waited_s, self._check)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._task.cancel()
