"""Tap: stands between the gateway and an engine and keeps every byte that passes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit

import httptools


class Message:
    """One HTTP request or answer as it passed."""

    def __init__(self) -> None:
        self.path = ""
        self.body = b""
        self.is_whole = False


class Tap:
    """What has passed, oldest first. The order holds for one call at a time."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.answers: list[Message] = []

    def clear(self) -> None:
        """Forget what has passed."""
        self.requests.clear()
        self.answers.clear()


class _Watch:
    """What httptools calls while it parses one direction of a connection."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def on_message_begin(self) -> None:
        self._messages.append(Message())

    def on_url(self, url: bytes) -> None:
        self._messages[-1].path += url.decode()

    def on_body(self, piece: bytes) -> None:
        self._messages[-1].body += piece

    def on_message_complete(self) -> None:
        self._messages[-1].is_whole = True


@contextmanager
def tapping(url: str) -> Iterator[tuple[str, Tap]]:
    """Listen in front of an engine; yield the address to use instead of `url`."""
    tap = Tap()
    address = urlsplit(url)
    engine = (address.hostname or "", address.port or 80)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_accept, args=(server, engine, tap), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", tap
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, engine: tuple[str, int], tap: Tap) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            upstream = socket.create_connection(engine)
            request = httptools.HttpRequestParser(_Watch(tap.requests))
            answer = httptools.HttpResponseParser(_Watch(tap.answers))
            Thread(target=_pass_on, args=(client, upstream, request), daemon=True).start()
            Thread(target=_pass_on, args=(upstream, client, answer), daemon=True).start()


def _pass_on(
    source: socket.socket,
    target: socket.socket,
    parser: "httptools.HttpRequestParser | httptools.HttpResponseParser",
) -> None:
    with source, suppress(OSError):
        while piece := source.recv(65536):
            parser.feed_data(piece)
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
