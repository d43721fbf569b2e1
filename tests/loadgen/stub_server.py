"""An OpenAI-like server on loopback that does what a test tells it to."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answering = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def completion(body: dict[str, Any], **extra: object) -> web.Response:
    """A whole answer of the length asked for."""
    tokens = body.get("vllm_xargs", {}).get("out_len", 5)
    usage = {"prompt_tokens": 100, "completion_tokens": tokens}
    return web.json_response({"choices": [{"message": {"content": "x"}}], "usage": usage} | extra)


async def answer_at_once(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return completion(body)


@dataclass
class StubServer:
    """What the server was asked, in order."""

    url: str = ""
    calls: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Headers and body of each call."""
    policies: list[dict[str, Any]] = field(default_factory=list)
    busy_answers: int = 0
    """So many times the state is reported as busy."""
    models: tuple[str, ...] = ("m1",)

    def stages(self) -> list[str]:
        return [headers["x-workflow-stage"] for headers, _ in self.calls]


@asynccontextmanager
async def stub_server(answering: Answering = answer_at_once) -> AsyncIterator[StubServer]:
    stub = StubServer()

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        headers = {name.lower(): value for name, value in request.headers.items()}
        stub.calls.append((headers, body))
        return await answering(request, body)

    async def policy(request: web.Request) -> web.Response:
        body = await request.json()
        if body["name"] == "unknown":
            return web.json_response({"error": {"message": "no such policy"}}, status=400)
        stub.policies.append(body)
        return web.json_response(body)

    async def state(_: web.Request) -> web.Response:
        stub.busy_answers -= 1
        return web.json_response({"queued": 0, "in_flight": int(stub.busy_answers >= 0)})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in stub.models]})

    app = web.Application(client_max_size=2**24)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat),
            web.get("/v1/models", models),
            web.put("/admin/policy", policy),
            web.get("/admin/state", state),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    stub.url = f"http://{host}:{port}"
    try:
        yield stub
    finally:
        await runner.cleanup()
