"""Link: one end of the connection between a worker and the scheduler process.

What is said within one turn of the event loop goes out in one piece, and is read in one.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from gateway.workers.wire import Fields, Message, line_of, messages_of


class Link:
    """Messages both ways. There are never more under way than there are calls, so none is bounded.

    `on_message` must not raise.
    """

    def __init__(
        self,
        on_message: Callable[[Fields], None],
        on_open: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_open = on_open
        self._on_lost = on_lost
        self._unsent: list[Message] = []
        self._unread = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @property
    def protocol(self) -> asyncio.Protocol:
        """What asyncio takes: one in all but name, a compiled class has no interpreted base."""
        return cast(asyncio.Protocol, self)

    def say(self, message: Message) -> None:
        """Send a message, with whatever else is said in this turn of the loop."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(message)

    def flush(self) -> None:
        """Send what there is."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(line_of(unsent))

    def close(self) -> None:
        """Send what there is, and close."""
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport
        # Nobody is asked to wait: what is not written yet is as bounded as what is.
        transport.set_write_buffer_limits(high=1 << 30)
        self._on_open()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        unread = self._unread
        if not unread and data.endswith(b"\n"):
            lines = data
        else:
            unread += data
            end = unread.rfind(b"\n", len(unread) - len(data)) + 1
            if not end:
                return
            lines = bytes(unread[:end])
            del unread[:end]
        for line in lines.split(b"\n")[:-1]:
            for fields in messages_of(line):
                self._on_message(fields)

    def eof_received(self) -> None:
        """See asyncio.Protocol: nothing more comes, and the connection is closed."""

    def pause_writing(self) -> None:
        """See asyncio.Protocol: nobody is asked to wait."""

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio.Protocol."""
        self._transport = None
        self._unsent.clear()
        self._on_lost()
