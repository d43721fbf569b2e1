"""Protocol: an HTTP/1.1 connection of uvicorn's server, with limits, and few steps a request."""

import asyncio
import logging
import re
import socket
from collections import deque
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from gateway.api.cycle import Cycle
from gateway.api.disconnect import PRESENCE, Presence
from gateway.api.door import ABORT
from gateway.api.guard import NO_LIMITS, Awaited, ConnectionLimits, Guard
from gateway.backends.base import Header

KEEP_ALIVE_IDLE_S = 60
KEEP_ALIVE_INTERVAL_S = 15
KEEP_ALIVE_PROBES = 4
"""A client that has vanished without a word, from a machine switched off, is noticed in 2 minutes:
after a minute of silence four probes are sent."""
UNACKNOWLEDGED_S = 60
"""Bytes that no machine takes for so long end the connection."""
MAX_KEPT_URL_BYTES = 256
"""A URL no longer than this is kept with its parts: most requests go to a few."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

log = logging.getLogger("uvicorn.error")  # the server's, whose level its settings set


class HeadTooLong(Exception):
    """Ends the parser's work; its client has been told why."""


class Protocol(Guard):
    """One connection, as uvicorn makes it, the transport drives it, and httptools calls it.

    It is a class of its own, to be compiled. What uvicorn's does besides and nobody here asks for
    is left out: WebSockets, an access log, a limit of requests at once, a root path.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits = NO_LIMITS,
    ) -> None:
        super().__init__(config, server_state, _loop or asyncio.get_running_loop(), limits)
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        # What is pipelined behind a last request, too: the first of them is answered.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._presence = Presence()
        self._state: dict[str, Any] = {**app_state, PRESENCE: self._presence}
        self._url = b""
        self._headers: list[Header] = []
        self._last: Cycle | None = None
        """The request that came last."""
        self._served: Cycle | None = None
        """The request that is being answered, or was last."""
        self._ahead: deque[Cycle] = deque()
        """Requests that came before those before them were answered."""
        self._is_in_head = True
        self._piece_bytes = 0
        self._lean_bytes = 0
        """Of pieces that came since the last byte of a body, or the last request's end."""
        self._end_bytes = 0
        """Of the piece in which that was: some of it may be the next request's head."""

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Have the kernel watch whether the client is still there."""
        self._state[ABORT] = transport.abort
        self._server = get_local_addr(transport)
        self._client = get_remote_addr(transport)
        self._scheme = "https" if is_ssl(transport) else "http"
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _OPTIONS:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the client has gone."""
        super().connection_lost(exc)
        for cycle in (self._served, self._last):
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                if cycle.news is not None:
                    cycle.news.set()
        self._served = self._last = None
        self.parser = None  # it holds this object
        self._presence.gone()

    def data_received(self, data: bytes) -> None:
        """Parse what the client says."""
        parser = self.parser
        if parser is None or self.transport.is_closing():
            return
        if self._awaited is Awaited.REQUEST:
            self._awaited, self._since = Awaited.HEAD, self.loop.time()
        self._piece_bytes = len(data)
        self._lean_bytes += self._piece_bytes
        if self._is_in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_upgrade(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            log.warning("Invalid HTTP request received.")
            self.refuse_bytes()
            return
        except httptools.HttpParserUpgrade:
            log.warning("Unsupported upgrade request.")
        if self._lean_bytes > self.limits.max_header_bytes:
            self.refuse_head()
        elif self._awaited is Awaited.BODY:
            self._since = self.loop.time()

    def eof_received(self) -> None:
        """See asyncio.Protocol: the client has said all, and the connection is closed."""

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = []
        self.expects_continue = False

    def on_url(self, url: bytes) -> None:
        """Keep what the request is for, or a part of it."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it stands behind the last chunk."""
        name = name.lower()
        if not self._is_in_head:
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is here: have the request served, unless another one is under way."""
        if self._lean_bytes + self._end_bytes > self.limits.max_header_bytes:
            self._measure_head()
        self._is_in_head = False
        self._lean_bytes = 0
        self._awaited = Awaited.BODY
        previous, cycle = self._last, self._cycle()
        self._last = cycle
        if previous is None or previous.response_complete:
            self._served = cycle
            cycle.start()
        else:
            self.flow.pause_reading()
            self._ahead.append(cycle)

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        self._lean_bytes = 0
        cycle = self._last
        if cycle is None or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if cycle.news is not None:
            cycle.news.set()

    def on_message_complete(self) -> None:
        """The request is here; what comes now is the next one's head."""
        self._is_in_head = True
        self._lean_bytes, self._end_bytes = 0, self._piece_bytes
        cycle = self._last
        if cycle is None or cycle.response_complete:
            self._awaited, self._since = Awaited.REQUEST, self.loop.time()
            return
        self._awaited = Awaited.ANSWER
        cycle.more_body = False
        if cycle.news is not None:
            cycle.news.set()

    # Requests

    def _measure_head(self) -> None:
        """Look how long a head is that might be too long: what came with it may be its body."""
        size = sum(len(name) + len(value) + 4 for name, value in self._headers)
        if len(self._url) + size > self.limits.max_header_bytes:
            self.refuse_head()
            raise HeadTooLong

    def _cycle(self) -> Cycle:
        parser = self.parser
        assert parser is not None  # it is who calls
        version = parser.get_http_version()
        method = parser.get_method().decode("ascii")
        keep_alive = version != "1.0" and parser.should_keep_alive()
        return Cycle(self, self._scope(version, method), keep_alive=keep_alive)

    def _scope(self, version: str, method: str) -> Scope:
        url = self._url
        path, raw_path, query = (parts_of if len(url) > MAX_KEPT_URL_BYTES else kept_parts_of)(url)
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": method,
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._state.copy(),
        }

    def has_begun_to_answer(self) -> bool:
        """Return whether the request that came last has got a part of its answer."""
        return self._last is not None and self._last.response_started

    def on_response_complete(self) -> None:
        """A request is answered: it is the next one's turn, if one has come."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._ahead:
            self._served = self._ahead.popleft()
            self._served.start()
        elif self._awaited is Awaited.ANSWER:
            self._awaited, self._since = Awaited.REQUEST, self.loop.time()

    # What the server calls

    def shutdown(self) -> None:
        """Close, or have the last answer end the connection."""
        if self._last is None or self._last.response_complete:
            self.transport.close()
        else:
            self._last.keep_alive = False


def guarded(limits: ConnectionLimits = NO_LIMITS) -> type[asyncio.Protocol]:
    """Return what `http` is in uvicorn's settings, for connections that keep these limits.

    It calls that as if it were a class, and what it gets is a protocol in all but name.
    """
    return cast(type[asyncio.Protocol], partial(Protocol, limits=limits))


def without_upgrade(data: bytes) -> bytes:
    """Return a request whose head asks for no other protocol.

    The parser takes a body for another protocol's bytes where a head asks for one, whether or not
    the server agrees. Java's own client asks for HTTP/2 in every request without TLS.
    """
    head, blank, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-declined-upgrade:", head) + blank + body


def parts_of(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path, the path as it came, and the query; HttpParserInvalidURLError."""
    parsed: Any = httptools.parse_url(url)  # its types say that there is always a query
    path: str = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


kept_parts_of = lru_cache(maxsize=256)(parts_of)

_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
    )
    if hasattr(socket, name)
]
"""Linux has them all; elsewhere the kernel's own times hold."""
