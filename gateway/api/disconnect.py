"""client_present: cancel what is done for a client when it goes away."""

import asyncio
from types import TracebackType

from starlette.types import Receive


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


class client_present:  # noqa: N801 - used like asyncio.timeout
    """`async with client_present(receive) as client:` cancels its body when the client leaves.

    The request's body must have been read. What leaves the block is then ClientLeft. One task for
    each request watches, whether the request waits, connects or streams.
    """

    __slots__ = ("_has_left", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._has_left = False
        self._watcher = asyncio.ensure_future(self._watch(receive))

    async def __aenter__(self) -> "client_present":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.answered()
        if self._has_left:
            self._task.uncancel()
            raise ClientLeft from None

    def answered(self) -> None:
        """The answer is about to end: from here on a closed connection is no loss."""
        self._watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()
