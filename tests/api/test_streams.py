"""Streams pass as they come, whole and unbent, and their facts are read beside."""

import asyncio
import json
from itertools import pairwise

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import (
    DONE,
    ROLE,
    STREAM,
    USAGE,
    Exchange,
    a_fake_backend,
    frame,
    plain,
    streams,
)

pytestmark = pytest.mark.anyio
WANTS_USAGE = chat(stream=True, stream_options={"include_usage": True})


@pytest.mark.parametrize("cut", range(1, len(USAGE + DONE), 7))
async def test_usage_is_read_wherever_it_is_cut(cut: int) -> None:
    """Case 1."""
    tail = USAGE + DONE
    script = streams(frame("a"), frame("b", "stop"), tail[:cut], tail[cut:], gap_s=0.002)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(WANTS_USAGE)

        assert reply.body == frame("a") + frame("b", "stop") + tail
        assert gw.tokens()[1] == 5
        assert gw.settled() == {("completed", ""): 1}


async def test_characters_may_be_cut_anywhere() -> None:
    """Case 2."""
    event = frame("漢字🙂é", "stop")
    pieces = [bytes([byte]) for byte in event + DONE]
    async with a_fake_backend(streams(*pieces)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(stream=True))).body == event + DONE


async def test_a_whole_answer_may_come_byte_by_byte() -> None:
    async def script(exchange: Exchange) -> None:
        body = json.dumps({"choices": [{"text": "漢字🙂é"}]}, ensure_ascii=False).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        for byte in head % len(body) + body:
            await exchange.send(bytes([byte]))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert reply.json == {"choices": [{"text": "漢字🙂é"}]}


@pytest.mark.parametrize("cut", [-1, -2, -3])
async def test_lines_may_end_in_crlf(cut: int) -> None:
    """Case 4."""
    events = [event.replace(b"\n", b"\r\n") for event in (frame("a"), frame("b", "stop"), USAGE)]
    pieces = [piece for event in events for piece in (event[:cut], event[cut:])]
    script = streams(*pieces, DONE, gap_s=0.003)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(WANTS_USAGE)

        assert reply.body == b"".join(events) + DONE
        assert gw.tokens()[1] == 5


async def test_lines_may_end_in_cr_and_a_mark_may_lead() -> None:
    """Case 5."""
    events = [b"\xef\xbb\xbf", frame("a", "stop"), USAGE, DONE]
    wire = [event.replace(b"\n", b"\r") for event in events]
    async with a_fake_backend(streams(*wire)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(WANTS_USAGE)

        assert reply.body == b"".join(wire)
        assert gw.tokens()[1] == 5


async def test_the_blank_after_data_is_optional_and_other_fields_pass() -> None:
    """Case 6."""
    events = [
        b"event: message\nid: 7\n" + frame("a").replace(b"data: ", b"data:"),
        b"retry: 1000\n" + frame("b", "stop").replace(b"data: ", b"data:"),
        USAGE.replace(b"data: ", b"data:"),
        b"data:[DONE]\n\n",
    ]
    async with a_fake_backend(streams(*events)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(WANTS_USAGE)

        assert reply.body == b"".join(events)
        assert gw.tokens()[1] == 5


async def test_comments_pass_as_comments() -> None:
    """Case 7."""
    events = [b": keep-alive\n\n", frame("a", "stop"), b":\n\n", USAGE, b": x\n\n", DONE]
    async with a_fake_backend(streams(*events)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(WANTS_USAGE)).body == b"".join(events)


async def test_an_engine_that_ends_without_done_has_ended_if_it_said_why() -> None:
    """Case 10, run A."""
    script = streams(frame("a"), frame("b", "stop"))
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body == frame("a") + frame("b", "stop")
        assert gw.settled() == {("completed", ""): 1}


async def test_chunks_without_choices_pass() -> None:
    """Case 18."""
    events = [
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"object":"x"}\n\n',
        b'data: {"choices":null}\n\n',
        b"data: not json\n\n",
        frame("a", "stop"),
        DONE,
    ]
    async with a_fake_backend(streams(*events)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(stream=True))).body == b"".join(events)


async def test_usage_on_a_chunk_with_content_is_read_and_passed() -> None:
    """Case 19."""
    event = (
        b'data: {"choices":[{"index":0,"delta":{"content":"z"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}\n\n'
    )
    async with a_fake_backend(streams(event, DONE)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body == event + DONE
        assert gw.tokens()[1] == 4


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [
        pytest.param({}, False, id="not asked for"),
        pytest.param({"stream_options": None}, False, id="null"),
        pytest.param({"stream_options": {}}, False, id="empty"),
        pytest.param({"stream_options": {"include_usage": False}}, False, id="declined"),
        pytest.param({"stream_options": {"include_usage": True}}, True, id="asked for"),
    ],
)
async def test_usage_is_always_counted_and_shown_to_those_who_asked(
    options: dict[str, object], is_shown: bool
) -> None:
    """Cases 21 and 133."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        reply = await gw.post({**chat(stream=True), **options})

        assert engine.calls[0].json["stream_options"] == {"include_usage": True}
        expected = [event for event in STREAM if is_shown or event != USAGE]
        assert reply.body == b"".join(expected)
        assert gw.tokens()[1] == 5


async def test_running_totals_are_not_added_up() -> None:
    """Case 23."""
    events = [
        b'data: {"choices":[{"delta":{"content":"t"},"finish_reason":%b}],'
        b'"usage":{"prompt_tokens":2,"completion_tokens":%d}}\n\n'
        % (b'"stop"' if n == 10 else b"null", n)
        for n in range(1, 11)
    ]
    async with a_fake_backend(streams(*events, DONE)) as engine, a_gateway(engine) as gw:
        await gw.post(WANTS_USAGE)

        assert gw.tokens()[1] == 10


@pytest.mark.parametrize("size", [200_000, 4_000_000])
async def test_a_very_long_line_is_delivered_whole(size: int) -> None:
    """Case 28."""
    event = frame("x" * size, "stop")
    pieces = [event[i : i + 16_384] for i in range(0, len(event), 16_384)]
    async with a_fake_backend(streams(*pieces, DONE)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(stream=True))).body == event + DONE


async def test_each_event_goes_on_as_it_comes() -> None:
    """Case 29."""
    script = streams(ROLE, *[frame("tok")] * 5, frame("", "stop"), DONE, gap_s=0.1)
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        loop = asyncio.get_running_loop()
        async with gw.session.post(
            gw.url + "/v1/chat/completions",
            json=chat(stream=True),
            headers={"accept-encoding": "gzip"},
        ) as response:
            assert "content-encoding" not in response.headers
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            arrived = [loop.time() async for _ in response.content.iter_any()]

        gaps = [later - earlier for earlier, later in pairwise(arrived)]
        assert len(gaps) >= 6
        assert max(gaps) < 0.2


async def test_a_reader_that_falls_behind_holds_the_engine_back_and_gets_all_in_order() -> None:
    # More than all the sockets on the way can hold together.
    events = [frame(f"{number:06}" * 10_000) for number in range(600)]
    engines: list[Exchange] = []
    held_for = 0

    async def script(exchange: Exchange) -> None:
        engines.append(exchange)
        await streams(*events, frame("", "stop"), DONE)(exchange)

    def is_held() -> bool:
        nonlocal held_for
        waiting = engines[0].writer.transport.get_write_buffer_size()
        held_for = held_for + 1 if waiting else 0
        return held_for == 20

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        lazy = await gw.dial(chat(stream=True))
        await lazy.read_until(b"\r\n\r\n")
        await gw.until(is_held)

        assert await unchunked(lazy.reader) == b"".join(events) + frame("", "stop") + DONE
        assert gw.settled() == {("completed", ""): 1}


async def unchunked(reader: asyncio.StreamReader) -> bytes:
    """What is sent in chunks."""
    pieces = []
    async with asyncio.timeout(20):
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
    return b"".join(pieces)


async def test_pieces_that_hold_several_events_are_taken_apart() -> None:
    async with a_fake_backend(streams(b"".join(STREAM))) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body == b"".join(event for event in STREAM if event != USAGE)
        assert gw.tokens()[1] == 5


async def test_what_comes_after_done_is_dropped_and_settles_nothing_twice() -> None:
    """Case 52."""
    script = streams(frame("a", "stop"), DONE, DONE, frame("b"), ends="reset")
    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(stream=True))

        assert reply.body == frame("a", "stop") + DONE
        assert gw.settled() == {("completed", ""): 1}


async def test_several_tool_calls_in_one_delta_pass_unchanged() -> None:
    """Case 149."""
    event = (
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}},'
        b'{"index":2,"function":{"name":null,"arguments":"{\\"x\\":"}}]},"finish_reason":null}]}\n\n'
    )
    last = frame("", "tool_calls")
    async with a_fake_backend(streams(event, last, DONE)) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat(stream=True))).body == event + last + DONE
