"""Child: the parent's end of one of its processes: that it serves, that it stirs, how it ends."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from subprocess import PIPE

from gateway.workers.launch import BEATS, Launch, Order

START_BEATS = 20 * BEATS
"""So many it may miss before it serves: it may have much to read, or wait for the scheduler."""


class Child(asyncio.SubprocessProtocol):
    """A process. It says that it is ready, and then again and again for as long as its loop turns.

    Its end does not wait for that of processes which it has started and which hold its output.
    """

    def __init__(self) -> None:
        self.is_ready = False
        """It has said so once."""
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code."""
        self._ticks = 0
        self._transport: asyncio.SubprocessTransport | None = None

    @staticmethod
    async def start(program: Sequence[str], launch: Launch) -> "Child":
        """Start a process; OSError if there is no memory, no process, no program."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            # In a group of its own: a terminal's Ctrl-C is for the parent to pass on.
            Child, *program, launch.role, stdin=PIPE, stdout=PIPE, stderr=None, process_group=0
        )  # fmt: skip
        child._write(launch.packed())
        return child

    def tell(self, order: Order) -> None:
        """Give it an order."""
        self._write(f"{order}\n".encode())

    def kill(self) -> None:
        """End it, whatever it is at."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.kill()

    def close(self) -> None:
        """Let go of it; it has ended, or does so now."""
        if self._transport is not None:
            self._transport.close()

    def tick(self) -> bool:
        """Count another tick of its silence; return whether it hangs, once.

        Ticks, and not time: a parent that was stopped itself for an hour has heard nobody in it.
        """
        self._ticks += 1
        return self._ticks == (BEATS if self.is_ready else START_BEATS)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.SubprocessProtocol."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        """See asyncio.SubprocessProtocol."""
        self.is_ready = True
        self._ticks = 0

    def process_exited(self) -> None:
        """See asyncio.SubprocessProtocol."""
        assert self._transport is not None
        code = self._transport.get_returncode()
        assert code is not None
        self.ended.set_result(code)
