"""What the tests read of answers, and how they ask: plain HTTP, nothing of the gateway's own."""

import json
import re
import select
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Headers(Protocol):
    """Headers by name, whatever its case."""

    def get(self, name: str, default: str, /) -> str:
        """Return a header, or the default."""

    def __getitem__(self, name: str, /) -> str: ...

    def __contains__(self, name: str, /) -> bool: ...


class Answer(NamedTuple):
    """One whole HTTP answer."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_stream(self) -> bool:
        """It came as server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [event[6:] for event in self.body.decode().split("\n\n") if event[:6] == "data: "]

    @property
    def frames(self) -> list[Any]:
        """The events that hold JSON, parsed."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def text(self) -> str:
        """What the model said, of a stream or not."""
        return "".join(said(frame) for frame in (self.frames if self.is_stream else [self.json]))

    @property
    def effective_status(self) -> int:
        """The status, or the one that an error in the first event means."""
        if self.status == 200 and self.is_stream and self.frames:
            error = self.frames[0].get("error")
            if error:
                return int(error.get("code") or 500)
        return self.status


def said(frame: Mapping[str, Any]) -> str:
    """Return the text in a whole answer or a chunk of one."""
    parts = []
    for choice in frame.get("choices") or ():
        message = choice.get("delta") or choice.get("message") or {}
        parts.append(message.get("content") or choice.get("text") or "")
    return "".join(parts)


def ask(
    url: str,
    path: str = CHAT,
    body: object = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Answer:
    """Send one request on a connection of its own and read the answer to its end."""
    connection = Connection(url, path, body, headers, method=method, timeout_s=timeout_s)
    with connection:
        return connection.read_to_end()


def chat(model: str, text: str = "Say something.", **more: object) -> dict[str, object]:
    """Return the body of a chat call."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def metric(url: str, name: str, **labels: str) -> float:
    """Return a metric of an engine or the gateway, summed over all series with these labels."""
    total = 0.0
    for line in ask(url, "/metrics", method="GET").body.decode().splitlines():
        found = re.fullmatch(r"([^\s{]+)(?:\{(.*)\})? (\S+)", line)
        if found and found[1] == name:
            has = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
            if all(has.get(label) == value for label, value in labels.items()):
                total += float(found[3])
    return total


def is_idle(gateway_url: str) -> bool:
    """Whether the gateway's books hold no request."""
    names = ("hexsage_requests_queued", "hexsage_requests_in_flight")
    return not any(metric(gateway_url, name) for name in names)


def eventually(is_so: Callable[[], bool], within_s: float) -> float:
    """Return after how many seconds it became so; AssertionError if it did not in time."""
    began_at = time.perf_counter()
    while True:
        holds = is_so()
        waited_s = time.perf_counter() - began_at
        if holds:
            return waited_s
        assert waited_s < within_s, f"not so after {waited_s:.1f} s"
        time.sleep(0.01)


class Connection:
    """One request on a connection of its own, that can be read bit by bit, or dropped."""

    def __init__(
        self,
        url: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        timeout_s: float = 60.0,
    ) -> None:
        address = urlsplit(url)
        self._http = HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        headers = {"content-type": "application/json", **(headers or {})}
        self._http.request(method, path, content, headers)
        self._response: HTTPResponse | None = None
        self._received = b""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def has_answer(self) -> bool:
        """Something has come that is not read yet, or the other side has closed."""
        readable, _, _ = select.select([self._http.sock], [], [], 0)
        return bool(readable)

    def read_until(self, text: bytes) -> None:
        """Read on until `text` has come in the body."""
        response = self._begun()
        while text not in self._received:
            piece = response.read1(65536)
            assert piece, f"{text!r} did not come: {self._received[-1000:]!r}"
            self._received += piece

    def header(self, name: str) -> str:
        """Return a header of the answer, "" if it has none such."""
        return self._begun().headers.get(name, "")

    def read_to_end(self) -> Answer:
        """Read the rest of the answer; return all of it."""
        response = self._begun()
        self._received += response.read()
        return Answer(response.status, response.headers, self._received)

    def drop(self) -> None:
        """Leave."""
        if self._response is not None:
            self._response.close()
        self._http.close()

    def _begun(self) -> HTTPResponse:
        if self._response is None:
            self._response = self._http.getresponse()
        return self._response
