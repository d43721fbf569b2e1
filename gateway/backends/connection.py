"""Connection: HTTP/1.1 with an engine, one call at a time, as an asyncio protocol on httptools.

It is as strict as its parser: what is not HTTP, what contradicts itself and what is too long ends
the connection, and a connection is used again only after an answer that ended where its framing
said, with nothing behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

from gateway.backends.base import BackendError, BadAnswer, ConnectionBroken, Header

MAX_HEAD_BYTES = 64 * 1024
"""Of an answer's status line and headers together; the same for what follows its last chunk."""
MAX_INTERIM = 16
"""Answers with a status of 1xx before the one that counts."""
HIGH_BYTES = 256 * 1024
"""More than this is not read ahead of whoever takes it."""
_BODILESS = (204, 304)
_NOT_HTTP = "the engine answered with something that is not HTTP"
_IDLE = httptools.HttpResponseParser(object())
"""In place of a lost connection's own, which knows the connection: they would hold each other."""


class Connection:
    """One connection. Its owner calls `send`, then `head`, then `read` or `read_all`.

    Every failure is a BackendError, raised to whoever waits and to whoever asks later.
    """

    __slots__ = (
        "_header_bytes",
        "_interim",
        "_is_bad",
        "_is_head_whole",
        "_is_kept",
        "_is_odd",
        "_is_paused",
        "_is_to_the_end",
        "_lean_bytes",
        "_loop",
        "_on_lost",
        "_parser",
        "_pieces",
        "_sender",
        "_size",
        "_transport",
        "_waiter",
        "_writable",
        "failure",
        "has_answered",
        "headers",
        "heard",
        "is_busy",
        "is_complete",
        "is_lost",
        "sent_at",
        "status",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_lost: Callable[["Connection"], None]
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._is_paused = False
        self.is_busy = False
        self.is_lost = False
        self.sent_at = 0.0
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        """The answer's, names in lower case."""
        self.has_answered = False
        """A byte of an answer is here."""
        self.is_complete = False
        self.heard: Callable[[], None] | None = None
        """Called, instead of waking whoever reads, when there is something to read or to end."""
        self._pieces.clear()
        self._size = 0
        self.failure: BackendError | None = ConnectionBroken() if self.is_lost else None
        """Why nothing more will come."""
        self._is_head_whole = False
        self._header_bytes = self._interim = 0
        self._lean_bytes = 0
        """Since the last byte of a body: headers, chunk lines, trailers that do not end."""
        self._is_to_the_end = False
        self._is_bad = False
        """It is no answer, or not one that is taken."""
        self._is_kept = False
        """The engine says that it keeps the connection."""
        self._is_odd = False
        """Something stands behind the answer: not to be used again."""
        self._sender: asyncio.Task[None] | None = None
        """While there is more of the request to come."""

    # Asking

    def send(self, request: bytes) -> None:
        """Begin a call: send its head, and its body if that is at hand."""
        self._begin()
        self.is_busy = True
        self.sent_at = self._loop.time()
        if not self.is_lost:
            self._transport.write(request)

    def send_more(self, pieces: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        """Send a body piece by piece, as fast as the engine takes it, while its answer comes."""
        self._sender = asyncio.ensure_future(self._send_pieces(pieces, is_chunked))
        self._sender.add_done_callback(self._sending_ended)

    async def _send_pieces(self, pieces: AsyncIterator[bytes], is_chunked: bool) -> None:
        async for piece in pieces:
            if piece:
                framed = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
                self._transport.write(framed)
            if self._writable is not None:
                await self._writable
        if is_chunked:
            self._transport.write(b"0\r\n\r\n")

    def _sending_ended(self, sender: asyncio.Task[None]) -> None:
        if self._sender is sender:
            self._sender = None
            if sender.cancelled() or sender.exception() is not None:
                self.fail(ConnectionBroken("the request could not be sent to its end"))

    # Hearing

    async def head(self) -> None:
        """Wait for the answer's status and headers."""
        while not self._is_head_whole:
            if self.failure is not None:
                raise self.failure
            await self._wait()

    async def read(self) -> bytes:
        """Return what has come of the body, b"" at its end."""
        while not self._size:
            if self.failure is not None:
                raise self.failure
            if self.is_complete:
                return b""
            await self._wait()
        return self.take()

    def take(self) -> bytes:
        """Return what has come of the body and nobody has taken; b"" is no end."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return taken

    async def read_all(self, limit_bytes: int) -> bytes:
        """Return the whole body, or a little more than the limit of a longer one."""
        taken: list[bytes] = []
        size = 0
        while size <= limit_bytes:
            if self.failure is not None:
                raise self.failure
            if self.is_complete:
                taken.append(self.take())
                break
            if self._is_paused:
                taken.append(self.take())
                size += len(taken[-1])
            else:
                await self._wait()
        return b"".join(taken)

    def header(self, name: bytes) -> str:
        """Return the first header of a name; empty if there is none."""
        for known, value in self.headers:
            if known == name:
                return value.decode("latin-1")
        return ""

    @property
    def is_reusable(self) -> bool:
        """The answer ended in order, and the engine keeps the connection."""
        return (
            self.is_complete
            and not self.is_lost
            and not self._is_odd
            and self._sender is None
            and self._is_kept
        )

    def rest(self) -> None:
        """Wait for another call. Anything that the engine says meanwhile ends the connection."""
        self.is_busy = False
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection at once: that is how an engine learns that nobody wants its answer."""
        self.fail(ConnectionBroken("the connection was closed"))

    def fail(self, error: BackendError) -> None:
        """End the connection for a reason that whoever reads is told."""
        if not self.is_complete and self.failure is None:
            self.failure = error
        if not self.is_lost:
            self._is_odd = True
            self._transport.abort()
            self._on_lost(self)
        if self._sender is not None:
            self._sender.cancel()
        self._wake()

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if self.heard is not None:
            self.heard()
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    # asyncio.Protocol, in all but name: a compiled class can have no interpreted one for its base

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but does not say so

    def data_received(self, data: bytes) -> None:
        """Parse what the engine says."""
        if not self.is_busy:
            self.close()
            return
        self.has_answered = True
        size = self._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_bad = True
        self._lean_bytes = 0 if self._size > size else self._lean_bytes + len(data)
        if self._is_bad or (self._lean_bytes > MAX_HEAD_BYTES and not self.is_complete):
            self.fail(BadAnswer(_NOT_HTTP))
            return
        self._wake()
        if self._size > HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """The engine has said all: what is still to be sent would find nobody."""
        self._end(None)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is no more."""
        self._end(exc)
        self._parser = _IDLE

    def _end(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._on_lost(self)
        self.resume_writing()
        if self._sender is not None:
            self._sender.cancel()
        if self.is_complete:
            return
        if self._is_head_whole and self._is_to_the_end and exc is None and self.failure is None:
            self.is_complete = True
        elif self.failure is None:
            self.failure = ConnectionBroken()
        self._wake()

    def pause_writing(self) -> None:
        """The engine takes no more for now."""
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The engine takes more, or there is nobody any more."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What the parser calls. It swallows what is raised here: failures are noted.

    def on_message_begin(self) -> None:
        """Note a second answer to one call."""
        if self.is_complete:
            self._is_odd = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it stands behind the last chunk."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > MAX_HEAD_BYTES:
            self._is_bad = True
        elif not self._is_head_whole:
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Know how the answer is framed, unless it is an interim one."""
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim += 1
            if status == 101 or self._interim > MAX_INTERIM:
                self._is_bad = True
            return
        self.status = status
        self._is_head_whole = True
        self._header_bytes = 0
        self._is_kept = self._parser.should_keep_alive()
        self._is_bad |= self._parser.get_http_version() not in ("1.1", "1.0")
        coding, has_length = None, status in _BODILESS
        for name, value in self.headers:
            if name == b"transfer-encoding" and coding is None:
                coding = value.strip().lower()
            elif name == b"content-length":
                has_length = True
        self._is_bad |= coding not in (None, b"chunked")
        self._is_to_the_end = coding is None and not has_length

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        if not self.is_complete:
            self._pieces.append(piece)
            self._size += len(piece)

    def on_message_complete(self) -> None:
        """The answer is whole, or was an interim one: the next is to come."""
        if self._is_head_whole:
            self.is_complete = not self._is_bad
        else:
            self.headers = []
