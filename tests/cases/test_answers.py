"""What engines send, and when: passed as it is, tried again as it may be, waited for as said."""

import asyncio
import json
from collections import Counter

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    WHOLE,
    Exchange,
    Script,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    resets,
    streams,
)

pytestmark = pytest.mark.anyio
WANTS_USAGE = chat(stream=True, stream_options={"include_usage": True})


async def test_the_usage_chunk_is_not_rewritten() -> None:
    """Case 20."""
    usage = (
        b'data: {"id":"x","choices":[],"x_vendor":{"a":1},"usage":{"prompt_tokens":7,'
        b'"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
    )
    script = streams(frame("a", "stop"), usage, DONE)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        assert (await gw.post(WANTS_USAGE)).body == frame("a", "stop") + usage + DONE


async def test_streams_are_never_compressed() -> None:
    """Case 27: engines are asked for plain bytes; one that compresses all the same has failed."""

    async def compressed(exchange: Exchange) -> None:
        await exchange.begin_stream(["content-encoding: gzip"])
        await exchange.chunk(b"\x1f\x8b\x08\x00")
        await exchange.end_stream()

    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        headers = {"accept-encoding": "gzip, br"}
        reply = await gw.post(chat(stream=True), headers=headers)
        assert engine.calls[0].headers["accept-encoding"] == "identity"
        assert "content-encoding" not in reply.headers

        engine.script = compressed
        reply = await gw.post(chat(stream=True), headers=headers)
        assert (reply.status, reply.error["code"]) == (502, "bad_answer")


@pytest.mark.parametrize("status", ["200 OK", "429 Full"])
async def test_a_body_may_come_long_after_its_headers(status: str) -> None:
    """Case 31."""

    async def late(exchange: Exchange) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        body = WHOLE if status.startswith("200") else b'{"error":{"message":"full"}}'
        await exchange.send(head.encode() + b"content-length: %d\r\n\r\n" % len(body))
        await exchange.pause(0.3)
        await exchange.send(body)

    async with a_fake_backend(late) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert reply.status == int(status[:3])
        assert reply.body == WHOLE or reply.error["message"] == "full"


async def test_nothing_is_sent_before_the_engine_has_said_something() -> None:
    """Cases 8 and 9: no keepalives of our own, so the status is the true one however late it is."""
    refuses = answers(b'{"error":{"message":"full"}}', "429 Full")
    async with a_fake_backend(after(0.5, refuses)) as engine, a_gateway(engine) as gw:
        wire = await gw.dial(chat(stream=True))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await wire.reader.read(1)

        assert (await wire.read_until(b"\r\n")).startswith(b"HTTP/1.1 429")


async def test_an_answer_of_the_other_kind_passes_as_it_is() -> None:
    """Case 118."""
    async with (
        a_fake_backend(streams(frame("a", "stop"), DONE)) as engine,
        a_gateway(engine) as gw,
    ):
        whole = await gw.post(chat())
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert whole.body == frame("a", "stop") + DONE

        engine.script = answers(WHOLE)
        stream = await gw.post(chat(stream=True))
        assert stream.headers["content-type"] == "application/json"
        assert stream.body == WHOLE
        assert gw.settled() == {("completed", ""): 2}


async def test_done_without_a_reason_is_no_end() -> None:
    """Case 10: engines that die say `[DONE]` too."""
    async with a_fake_backend(streams(frame("a"), DONE)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body.startswith(frame("a"))
        assert json.loads(reply.events[-1])["error"]["code"] == "bad_answer"
        assert gw.settled() == {("failed", "bad_answer"): 1}


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_a_backend_may_live_under_a_path(ending: str) -> None:
    """Cases 141 and 153."""
    async with a_fake_backend(plain) as engine:
        engine.base = "/x"
        async with a_gateway(engine, backends=[{"url": f"{engine.url}/x{ending}"}]) as gw:
            assert (await gw.post(chat())).status == 200
            assert engine.calls[0].target == "/x/v1/chat/completions"


# Attempts


async def test_when_every_attempt_fails_the_client_is_told_the_last_failure() -> None:
    """Case 85."""
    full = answers(b'{"error": {"message": "full"}}', "503 Full")
    async with (
        a_fake_backend(plain) as gone,
        a_fake_backend(full) as busy,
        a_fake_backend(resets) as broken,
        a_gateway(gone, busy, broken, health={"interval_s": 60, "timeout_s": 0.5}) as gw,
    ):
        await gone.stop()
        async with asyncio.timeout(5):
            reply = await gw.post(chat())

        assert reply.status in (502, 503)
        assert isinstance(reply.error["message"], str)
        assert sum(gw.settled().values()) == 1
        assert sum(gw.gateway.counters.failures.values()) == 3
        await gone.start()


def _dies_after(seconds: float) -> Script:
    used: set[int] = set()

    async def script(exchange: Exchange) -> None:
        if exchange.seen.connection in used:
            await exchange.pause(seconds)
            exchange.close()
            return
        used.add(exchange.seen.connection)
        await plain(exchange)

    return script


async def test_a_reused_connection_that_worked_for_a_while_was_not_dead() -> None:
    """Case 92, its second half: what an engine has begun is a failed attempt, and counted."""
    async with a_fake_backend(_dies_after(0.7)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat())).status == 200
        await gw.post(chat())

        assert gw.gateway.counters.failures["reset"] >= 1


async def test_a_long_prefill_is_waited_for() -> None:
    """Case 87: the default of many client libraries is 5 s, so this is not scaled down."""
    async with a_fake_backend(after(5.3)) as engine, a_gateway(engine) as gw:
        replies = await asyncio.gather(gw.post(chat()), gw.post(chat(stream=True)))

        assert [reply.status for reply in replies] == [200, 200]


async def test_an_engine_that_stands_still_is_given_up() -> None:
    """Case 96: before the first event, and in the middle of a stream."""
    timeouts = {"first_token_s": 0.3, "inter_token_s": 0.3, "total_s": 5}
    async with a_fake_backend(after(60)) as engine, a_gateway(engine, timeouts=timeouts) as gw:
        assert (await gw.post(chat(stream=True))).error["code"] == "timeout_first_token"
        engine.script = streams(frame("a"), ends="never")
        reply = await gw.post(chat(stream=True))
        assert json.loads(reply.events[-1])["error"]["code"] == "timeout_inter_token"


async def test_clients_who_leave_are_neither_errors_nor_successes() -> None:
    """Case 42."""
    async with a_fake_backend(streams(frame("a"), ends="never")) as engine, a_gateway(engine) as gw:
        wires = [await gw.dial(chat(stream=True)) for _ in range(6)]
        for wire in wires:
            await wire.read_until(b"\n\n")
            wire.reset()
        await gw.until(lambda: gw.settled() == {("abandoned", ""): 6})
        engine.script = plain
        for _ in range(3):
            await gw.post(chat())
        engine.script = answers(b"{}", "500 No")
        for _ in range(2):
            await gw.post(chat())

        outcomes: Counter[str] = Counter()
        for (outcome, _), count in gw.settled().items():
            outcomes[outcome] += count
        assert outcomes == {"abandoned": 6, "completed": 3, "failed": 2}
        assert sum(gw.gateway.counters.last_token_s["m1"].counts) == 3


async def test_the_gateways_own_refusals_count_against_no_backend() -> None:
    """Case 114."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for _ in range(5):
            assert (await gw.post({**chat(), "model": "nope"})).status == 404

        assert gw.settled() == {("rejected", "model_not_found"): 5}
        assert gw.gateway.counters.failures == {}
        assert engine.calls == []
