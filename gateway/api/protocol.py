"""Protocol: uvicorn's HTTP/1.1 connection, with limits, and with fewer steps for each request."""

import asyncio
import re
import socket
from collections import deque
from functools import lru_cache
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from gateway.api.cycle import Cycle
from gateway.api.disconnect import PRESENCE, Presence
from gateway.api.door import ABORT
from gateway.api.guard import Awaited, ConnectionLimits, Guard

KEEP_ALIVE_IDLE_S = 60
KEEP_ALIVE_INTERVAL_S = 15
KEEP_ALIVE_PROBES = 4
"""A client that has vanished without a word, from a machine switched off, is noticed in 2 minutes:
after a minute of silence four probes are sent."""
UNACKNOWLEDGED_S = 60
"""Bytes that no machine takes for so long end the connection."""
MAX_KEPT_URL_BYTES = 256
"""A URL no longer than this is kept with its parts: most requests go to a few."""


_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class HeadTooLong(Exception):
    """Ends the parser's work; its client has been told why."""


class Protocol(Guard):
    """One connection. `http=Protocol` in uvicorn's settings, or `guarded`.

    What uvicorn can do besides and nobody here asks for is left out: WebSockets, its access log,
    its limit of requests at once.
    """

    cycle: Cycle  # type: ignore[assignment]  # one of its own, not uvicorn's
    """The request that came last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Have the kernel watch whether the client is still there."""
        self._presence = Presence()
        self._state = {**self.app_state, ABORT: transport.abort, PRESENCE: self._presence}
        self._served: Cycle | None = None
        """The request that is being answered, or was last."""
        self._ahead: deque[Cycle] = deque()
        """Requests that came before those before them were answered."""
        self._raw_root = self.root_path.encode("ascii")
        self._is_in_head = True
        self._piece_bytes = 0
        self._lean_bytes = 0
        """Of pieces that came since the last byte of a body, or the last request's end."""
        self._end_bytes = 0
        """Of the piece in which that was: some of it may be the next request's head."""
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _OPTIONS:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the client has gone."""
        self._stop_looking()
        self.connections.discard(self)
        for cycle in (self._served, self.cycle):
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                if cycle.news is not None:
                    cycle.news.set()
        self._served = None
        self.cycle = None  # type: ignore[assignment]  # as in uvicorn before the first
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]  # as in uvicorn: it holds this object
        self._presence.gone()

    def data_received(self, data: bytes) -> None:
        """Parse what the client says."""
        if self.transport.is_closing():
            return
        if self._awaited is Awaited.REQUEST:
            self._awaited, self._since = Awaited.HEAD, self.loop.time()
        self._piece_bytes = len(data)
        self._lean_bytes += self._piece_bytes
        if self._is_in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_upgrade(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            msg = "Invalid HTTP request received."
            self.logger.warning(msg)
            self.send_400_response(msg)
            return
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        if self._lean_bytes > self.limits.max_header_bytes:
            self.refuse_head()
        elif self._awaited is Awaited.BODY:
            self._since = self.loop.time()

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it stands behind the last chunk."""
        name = name.lower()
        if not self._is_in_head:
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is here: have the request served, unless another one is under way."""
        if self._lean_bytes + self._end_bytes > self.limits.max_header_bytes:
            self._measure_head()
        self._is_in_head = False
        self._lean_bytes = 0
        self._awaited = Awaited.BODY
        parser = self.parser
        version = parser.get_http_version()
        keep_alive = version != "1.0" and parser.should_keep_alive()
        cycle = Cycle(self, self._scope(version), keep_alive=keep_alive)
        previous, self.cycle = self.cycle, cycle
        if previous is None or previous.response_complete:
            self._served = cycle
            cycle.start(self.app, self.loop)
        else:
            self.flow.pause_reading()
            self._ahead.append(cycle)

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        self._lean_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
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
        cycle = self.cycle
        if cycle.response_complete:
            self._awaited, self._since = Awaited.REQUEST, self.loop.time()
            return
        self._awaited = Awaited.ANSWER
        cycle.more_body = False
        if cycle.news is not None:
            cycle.news.set()

    # Requests

    def _measure_head(self) -> None:
        """Look how long a head is that might be too long: what came with it may be its body."""
        size = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) + size > self.limits.max_header_bytes:
            self.refuse_head()
            raise HeadTooLong

    def _scope(self, version: str) -> Scope:
        url = self.url
        path, raw_path, query = (parts_of if len(url) > MAX_KEPT_URL_BYTES else kept_parts_of)(url)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": self.root_path,
            "path": self.root_path + path,
            "raw_path": self._raw_root + raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self._state.copy(),
        }

    def on_response_complete(self) -> None:
        """A request is answered: it is the next one's turn, if one has come."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._ahead:
            self._served = self._ahead.popleft()
            self._served.start(self.app, self.loop)
        elif self._awaited is Awaited.ANSWER:
            self._awaited, self._since = Awaited.REQUEST, self.loop.time()


def guarded(limits: ConnectionLimits) -> type[Protocol]:
    """Return a protocol for uvicorn that keeps these limits."""
    return type("GuardedProtocol", (Protocol,), {"limits": limits})


def without_upgrade(data: bytes) -> bytes:
    """Return a request whose head asks for no other protocol.

    The parser takes a body for another protocol's bytes where a head asks for one, whether or not
    the server agrees. Java's own client asks for HTTP/2 in every request without TLS.
    """
    head, blank, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-declined-upgrade:", head) + blank + body


def parts_of(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path, the path as it came, and the query; HttpParserInvalidURLError."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
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
