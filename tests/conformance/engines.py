"""An engine of each dialect in the place of a scripted one: vLLM and TGI emulated, a llama.cpp."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import aiohttp

from gateway.core.profiles import PROFILES
from gateway.emulator.server import EmulatorServer, serving
from tests.backends.fake_backend import MODEL, FakeBackend
from tests.conformance.llama_cpp import llama_cpp, llama_cpp_loading
from tests.emulator.asgi import some_options

CONTEXT_TOKENS = 2000
SPEED = 20.0
PATIENT = {"interval_s": 0.2, "timeout_s": 5.0}
"""Probes for a busy machine: engines and gateway share one event loop here."""


class Engine(FakeBackend):
    """An engine that is not scripted, but can be told to fail."""

    kind = "openai"
    emulator: EmulatorServer | None = None

    @property
    def running(self) -> int:
        if self.emulator is None:
            return super().running
        model = self.emulator.app.engines[self.port].engine.model
        return model.running + model.waiting

    async def crash(self) -> None:
        """Lose all that is running."""
        if self.emulator is None:
            for writer in list(self._writers):
                writer.transport.abort()
            return
        await self._order(crash=True)

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Have it refuse for lack of room while the block runs."""
        if self.emulator is None:
            script, self.script = self.script, llama_cpp_loading
            yield
            self.script = script
            return
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "occupy"}],
            "vllm_xargs": {"out_len": 1500},
            "stream": True,
        }
        url = f"{self.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            await answer.content.readany()
            await self._order(stall=True)
            yield
            await self._order()

    async def _order(self, **faults: bool) -> None:
        async with aiohttp.ClientSession() as session:
            await session.post(f"{self.url}/emulator/faults", json=faults)


@asynccontextmanager
async def emulated(kind: str, *, calls_at_most: int | None = None) -> AsyncIterator[Engine]:
    """Run an emulated engine."""
    profile = replace(PROFILES["A100-80G"], block_tokens=1 if kind == "tgi" else 16)
    options = some_options(
        profile,
        kind=kind,
        speed=SPEED,
        max_model_len=CONTEXT_TOKENS,
        max_num_queued_reqs=calls_at_most,
        allow_faults=True,
    )
    async with serving([options]) as server:
        engine = Engine(llama_cpp)
        engine.kind = kind
        engine.emulator = server
        [engine.port] = server.app.engines
        yield engine


@asynccontextmanager
async def a_llama_cpp(*, calls_at_most: int | None = None) -> AsyncIterator[Engine]:  # noqa: ARG001 - it has no such limit
    """Run what looks like llama.cpp's server."""
    engine = Engine(llama_cpp)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


Start = Callable[..., AbstractAsyncContextManager[Engine]]


def _emulated(kind: str) -> Start:
    def start(*, calls_at_most: int | None = None) -> AbstractAsyncContextManager[Engine]:
        return emulated(kind, calls_at_most=calls_at_most)

    return start


ENGINES: dict[str, Start] = {
    "vllm": _emulated("vllm"),
    "tgi": _emulated("tgi"),
    "llama.cpp": a_llama_cpp,
}
