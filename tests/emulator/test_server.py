"""Emulated engines behind real sockets: the openai client, disconnects, ports, cut lines."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from gateway.emulator.options import EngineOptions
from gateway.emulator.server import KEEP_ALIVE_S, EmulatorServer, serving
from tests.emulator.asgi import CHAT, a_chat, read_events, some_options

FAST = some_options(speed=100.0, allow_faults=True)


def run_until_done(main: Coroutine[Any, Any, None]) -> None:
    """Run a test that must not hang."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await main

    asyncio.run(limited())


@asynccontextmanager
async def clients(*options: EngineOptions) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Serve engines, and yield a client for each."""
    async with serving(options or (FAST,)) as server:
        opened = [httpx.AsyncClient(base_url=url) for url in urls(server)]
        try:
            yield opened
        finally:
            for client in opened:
                await client.aclose()


def urls(server: EmulatorServer) -> list[str]:
    """Where each engine listens."""
    return [f"http://127.0.0.1:{port}" for port in server.app.engines]


async def running(client: httpx.AsyncClient) -> int:
    """Read how many calls the engine says are running."""
    page = (await client.get("/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
    return int(float(line.split()[-1]))


async def until_running(client: httpx.AsyncClient, count: int) -> None:
    """Wait until so many calls are running."""
    while await running(client) != count:  # noqa: ASYNC110 - its metrics are all there is to watch
        await asyncio.sleep(0.005)


def test_the_openai_client_works() -> None:
    async def main() -> None:
        async with (
            serving([FAST]) as server,
            openai.AsyncOpenAI(base_url=f"{urls(server)[0]}/v1", api_key="none") as client,
        ):
            assert [model.id async for model in client.models.list()] == ["m1"]
            whole = await client.chat.completions.create(
                model="m1",
                messages=[{"role": "user", "content": "hello"}],
                extra_body={"vllm_xargs": {"out_len": 12}},
            )
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 12
            text = ""
            stream = await client.chat.completions.create(
                model="m1",
                messages=[{"role": "user", "content": "hello"}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"vllm_xargs": {"out_len": 12}},
            )
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            assert text == whole.choices[0].message.content
            assert chunk.usage is not None
            assert chunk.usage.completion_tokens == 12

            completion = await client.completions.create(model="m1", prompt="hello", max_tokens=3)
            assert len(completion.choices[0].text.split()) == 3

            called = await client.chat.completions.create(
                model="m1",
                messages=[{"role": "user", "content": "hello"}],
                tools=[{"type": "function", "function": {"name": "look_up"}}],
                tool_choice="required",
            )
            [tool_call] = called.choices[0].message.tool_calls or []
            assert tool_call.type == "function"
            assert tool_call.function.name == "look_up"

            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await client.chat.completions.create(
                    model="nope", messages=[{"role": "user", "content": "hello"}]
                )

    run_until_done(main())


def test_the_blocking_openai_client_works() -> None:
    def talk(url: str) -> int:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
            stream = client.chat.completions.create(
                model="m1", messages=[{"role": "user", "content": "hello"}], stream=True
            )
            return sum(1 for _ in stream)

    async def main() -> None:
        async with serving([some_options(speed=100.0, api_key="k")]) as server:
            assert await asyncio.to_thread(talk, urls(server)[0]) >= 2

    run_until_done(main())


def test_each_port_is_its_own_engine() -> None:
    async def main() -> None:
        other = EngineOptions(name="b", profile=FAST.profile, models=("m2",), api_key="k")
        async with clients(FAST, other) as (first, second):
            assert (await first.get("/v1/models")).json()["data"][0]["id"] == "m1"
            assert (await second.get("/v1/models")).status_code == 401
            authorized = {"authorization": "Bearer k"}
            models = await second.get("/v1/models", headers=authorized)
            assert models.json()["data"][0]["id"] == "m2"
            assert (await first.post(CHAT, json=a_chat())).headers["x-emulator-speed"] == "100"

    run_until_done(main())


def test_tokens_arrive_while_they_are_made() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        body = a_chat(out_len=1000, stream=True)
        async with clients() as [client], client.stream("POST", CHAT, json=body) as answer:
            arrivals = []
            received = b""
            async for chunk in answer.aiter_raw():
                arrivals.append(loop.time())
                received += chunk
            assert read_events(received)[-1] == "[DONE]"
            assert len(arrivals) > 10
            assert arrivals[-1] - arrivals[0] > 0.15  # 1,000 tokens take 22 s at speed 1

    run_until_done(main())


def test_hanging_up_on_a_stream_frees_the_engine() -> None:
    async def main() -> None:
        body = a_chat(out_len=100_000, stream=True)
        async with clients(some_options()) as [client]:
            async with client.stream("POST", CHAT, json=body) as answer:
                async for _ in answer.aiter_raw():
                    break
                assert await running(client) == 1
            await until_running(client, 0)

    run_until_done(main())


def test_hanging_up_on_a_whole_answer_frees_the_engine() -> None:
    async def main() -> None:
        async with clients(some_options()) as [client]:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(CHAT, json=a_chat(out_len=100_000), timeout=0.2)
            await until_running(client, 0)

    run_until_done(main())


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_cut_connection_is_a_broken_answer(is_stream: bool) -> None:
    async def main() -> None:
        async with clients() as [client]:
            await client.post("/emulator/faults", json={"drop_rate": 1})
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await client.post(CHAT, json=a_chat(out_len=500, stream=is_stream))
            await until_running(client, 0)

    run_until_done(main())


def test_a_refusing_engine_cuts_every_connection_but_takes_orders() -> None:
    async def main() -> None:
        async with clients() as [client]:
            await client.post("/emulator/faults", json={"refuse": True})
            for path in ("/health", "/v1/models"):
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                    await client.get(path)
            await client.post("/emulator/faults", json={})
            assert (await client.get("/health")).status_code == 200

    run_until_done(main())


def test_cutting_connections_leaves_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with clients() as [client]:
            for fault in ("refuse", "drop_rate"):
                await client.post("/emulator/faults", json={fault: fault == "refuse" or 1})
                for is_stream in (True, False):
                    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                        await client.post(CHAT, json=a_chat(stream=is_stream))

    run_until_done(main())

    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_stopping_the_server_ends_its_streams() -> None:
    async def main() -> None:
        async with serving([some_options()]) as server:
            body = a_chat(out_len=100_000, stream=True)
            async with (
                httpx.AsyncClient(base_url=urls(server)[0]) as client,
                client.stream("POST", CHAT, json=body) as answer,
            ):
                received = b""
                async for chunk in answer.aiter_raw():
                    received += chunk
                    server.should_exit = True
            events = read_events(received)
            assert events[-2]["choices"][0]["finish_reason"] == "abort"
            assert events[-1] == "[DONE]"

    run_until_done(main())


def test_idle_connections_are_closed_after_as_long_as_vllm_waits() -> None:
    async def main() -> None:
        async with serving([FAST]) as server:
            assert server.config.timeout_keep_alive == KEEP_ALIVE_S == 5

    run_until_done(main())
