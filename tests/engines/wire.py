"""What the tests read of answers, and how they ask: plain HTTP, nothing of the gateway's own."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Answer(NamedTuple):
    """One whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        """It came as server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Any:
        """The body, parsed; None: it is no JSON."""
        try:
            return httpx.Response(200, content=self.body).json()
        except ValueError:
            return None

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [event[6:] for event in self.body.decode().split("\n\n") if event[:6] == "data: "]

    @property
    def frames(self) -> list[Any]:
        """The events that hold JSON, parsed."""
        return [parsed(event) for event in self.events if event != "[DONE]"]

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


def parsed(text: str) -> Any:
    """Return the JSON value."""
    return httpx.Response(200, text=text).json()


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
    content = body if isinstance(body, bytes) else None
    with httpx.Client(timeout=timeout_s) as client:
        response = client.request(
            method,
            url + path,
            content=content,
            json=body if content is None and body is not None else None,
            headers={"content-type": "application/json", **(headers or {})},
        )
        return Answer(response.status_code, response.headers, response.content)


def chat(model: str, text: str = "Say something.", **more: object) -> dict[str, object]:
    """Return the body of a chat call."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def metric(url: str, name: str, **labels: str) -> float:
    """Return a metric of an engine or the gateway, summed over all series with these labels."""
    total = 0.0
    for line in httpx.get(url + "/metrics", timeout=10.0).text.splitlines():
        found = re.fullmatch(r"([^\s{]+)(?:\{(.*)\})? (\S+)", line)
        if found and found[1] == name:
            has = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
            if all(has.get(label) == value for label, value in labels.items()):
                total += float(found[3])
    return total


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
