"""Calls to an ASGI application without a network, for tests in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from gateway.core.profiles import PROFILES, GpuProfile
from gateway.emulator.options import EngineOptions

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def some_options(profile: GpuProfile = PROFILES["A100-80G"], **changes: Any) -> EngineOptions:
    """Return the options of an engine that serves `m1`."""
    return EngineOptions(name="emulated", profile=profile, models=("m1",), **changes)


def a_chat(text: str = "hello", out_len: int | None = 10, **changes: object) -> dict[str, object]:
    """Return a chat request whose answer has `out_len` tokens."""
    body: dict[str, object] = {"model": "m1", "messages": [{"role": "user", "content": text}]}
    if out_len is not None:
        body["vllm_xargs"] = {"out_len": out_len}
    return {**body, **changes}


@dataclass(slots=True)
class Answer:
    """What came back, and when on the loop's clock."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    ended_at: float | None = None

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The stream's events; the last is the text `[DONE]` if it ends as it should."""
        return read_events(self.body)


def read_events(body: bytes) -> list[Any]:
    """Return the data of server-sent events: JSON, or the end mark as it is."""
    frames = body.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [
        "[DONE]" if frame == "data: [DONE]" else orjson.loads(frame.removeprefix("data: "))
        for frame in frames
    ]


def content(events: list[Any]) -> str:
    """Return the text of a chat stream."""
    return "".join(
        choice["delta"].get("content", "")
        for event in events
        if event != "[DONE]"
        for choice in event["choices"]
    )


async def call(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    leaves_after_s: float | None = None,
    method: str | None = None,
    chunk_s: float = 0.0,
) -> Answer:
    """Send one request; a body that is not bytes goes as JSON.

    The client may leave, and may take its time (`chunk_s`) to read each chunk.
    """
    loop = asyncio.get_running_loop()
    raw = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    answer = Answer()
    sent = False
    gone = asyncio.Event()
    timer = None if leaves_after_s is None else loop.call_later(leaves_after_s, gone.set)

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = dict(message["headers"])
        else:
            answer.chunks.append((loop.time(), message["body"]))
            if not message["more_body"]:
                answer.ended_at = loop.time()
            if chunk_s:
                await asyncio.sleep(chunk_s)

    given = {"content-type": "application/json", **(headers or {})}
    await app(
        {
            "type": "http",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "headers": [(key.encode(), value.encode()) for key, value in given.items()],
            "server": ("127.0.0.1", 1),
            "state": {"abort": gone.set},
        },
        receive,
        send,
    )
    if timer is not None:
        timer.cancel()
    return answer
