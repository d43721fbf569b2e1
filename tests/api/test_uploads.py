"""Files pass as they come: to the right backend, without being kept, and never holding a slot."""

import asyncio
import json
import resource
from itertools import pairwise

import pytest
from starlette.types import Message

from gateway.api import uploads
from gateway.api.uploads import HELD_BYTES, FormUpload
from tests.api.harness import Running, a_gateway
from tests.api.test_multipart import BOUNDARY, FILE, MODEL, form
from tests.backends.fake_backend import Exchange, a_fake_backend, answers, plain, resets, streams

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/transcriptions"
FORM_TYPE = b"multipart/form-data; boundary=" + BOUNDARY
FORM = {"content-type": FORM_TYPE.decode()}
TEXT = json.dumps({"text": "hello", "usage": {"type": "duration", "seconds": 3}}).encode()
SMALL = (FILE, b"RIFF" * 1000)
BIG = (FILE, bytes(range(256)) * 20_000)
"""5 MB."""


@pytest.mark.parametrize("ahead", range(6))
async def test_the_end_is_sent_however_far_the_client_is_ahead_of_the_engine(ahead: int) -> None:
    wire = form((MODEL, b"m1"), (FILE, b"RIFF" * (HELD_BYTES // 4 + 100)))
    cuts = (0, HELD_BYTES + 100, HELD_BYTES + 200, HELD_BYTES + 300, len(wire))
    messages = [
        {"type": "http.request", "body": wire[begin:end], "more_body": end < len(wire)}
        for begin, end in pairwise(cuts)
    ]

    async def receive() -> Message:
        return messages.pop(0)

    upload = FormUpload({"headers": [(b"content-type", FORM_TYPE)]}, receive, 2 * len(wire))
    await upload.read_head(len(wire))
    upload.head(None)

    async def watch() -> None:
        while messages:
            await upload.receive()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        for _ in range(ahead):
            await asyncio.sleep(0)
        assert b"".join([piece async for piece in upload.pieces()]) == wire


@pytest.mark.parametrize("path", [PATH, "/v1/audio/translations"])
@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(form((MODEL, b"m1"), SMALL), id="the model first"),
        pytest.param(form(SMALL, (MODEL, b"m1")), id="the file first"),
        pytest.param(form((MODEL, b"m1"), BIG), id="a large file"),
        pytest.param(form(BIG, (MODEL, b"m1")), id="a large file first"),
        pytest.param(form((MODEL, b"m1"), SMALL, SMALL), id="two files"),
        pytest.param(form(SMALL), id="no model"),
        pytest.param(form((MODEL, b"m1")), id="no file"),
        pytest.param(form((MODEL, b"m1"), SMALL, last=b""), id="no end"),
        pytest.param(
            form(
                (MODEL, b"m1"),
                (b'Content-Disposition: form-data; name="temperature"', b"abc"),
                (b'Content-Disposition: form-data; name="prompt"', b"x" * 2_000_000),
                *[(b'Content-Disposition: form-data; name="a"', b"b")] * 10_000,
            ),
            id="many and large fields",
        ),
    ],
)
async def test_a_form_passes_byte_for_byte(path: str, wire: bytes) -> None:
    """Cases 101, 136 and 138: what is odd in it is the engine's to judge."""
    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine) as gw:
        reply = await gw.request("POST", path, wire, FORM)

        assert (reply.status, reply.body) == (200, TEXT)
        (seen,) = engine.calls
        assert seen.body == wire
        assert seen.headers["content-type"] == FORM["content-type"]
        assert gw.settled() == {("completed", ""): 1}


async def test_a_form_without_a_length_passes_too() -> None:
    wire = form((MODEL, b"m1"), BIG)

    async def pieces() -> object:
        for at in range(0, len(wire), 100_000):
            yield wire[at : at + 100_000]

    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine) as gw:
        async with gw.session.post(gw.url + PATH, data=pieces(), headers=FORM) as response:
            assert await response.read() == TEXT
        assert engine.calls[0].body == wire
        assert engine.calls[0].headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("alias", [b"whisper-1", b"w"])
@pytest.mark.parametrize("file", [SMALL, BIG])
async def test_the_model_decides_and_its_alias_is_replaced(
    alias: bytes, file: tuple[bytes, bytes]
) -> None:
    """Cases 98 and 138."""
    models = {alias.decode(): {"target": "m2"}}
    async with (
        a_fake_backend(plain) as other,
        a_fake_backend(answers(TEXT)) as engine,
        a_gateway(other, engine, backends=[{}, {"model": "m2"}], models=models) as gw,
    ):
        reply = await gw.request("POST", PATH, form((MODEL, alias), file), FORM)

        assert reply.status == 200
        assert engine.calls[0].body == form((MODEL, b"m2"), file)
        assert other.calls == []


@pytest.mark.parametrize(
    ("wire", "headers", "status", "code"),
    [
        (form((MODEL, b"nope"), SMALL), FORM, 404, "model_not_found"),
        (b"{}", {"content-type": "application/json"}, 400, "bad_request"),
        (b"--a--", {"content-type": "multipart/form-data"}, 400, "bad_request"),
        (form((MODEL, b"m" * 100_000), SMALL), FORM, 400, "bad_request"),
        (form((FILE, b"x" * 200_000), (MODEL, b"m1")), FORM, 400, "missing_field"),
        (form((MODEL, b"m1"), (FILE, b"x" * 600_000)), FORM, 413, "body_too_large"),
    ],
)
async def test_what_cannot_be_routed_is_refused(
    wire: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    """Cases 136 to 138."""
    limits = {"max_body_bytes": 100_000, "max_upload_bytes": 500_000}
    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine, limits=limits) as gw:
        reply = await gw.request("POST", PATH, wire, headers)

        assert (reply.status, reply.error["code"]) == (status, code)
        assert engine.calls == []


@pytest.mark.parametrize("second", [b"m2", b"m1"])
async def test_a_second_model_behind_what_was_routed_is_not_sent(second: bytes) -> None:
    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine) as gw:
        wire = form((MODEL, b"m1"), BIG, (MODEL, second), SMALL)
        reply = await gw.request("POST", PATH, wire, FORM)

        assert (reply.status, reply.error["param"]) == (400, "model")
        await gw.until(lambda: gw.gateway.driver.in_flight == 0)
        assert not any(call.body.endswith(b"--\r\n") for call in engine.calls)


async def test_a_wrong_boundary_is_a_form_without_a_model() -> None:
    async with (
        a_fake_backend(answers(TEXT)) as engine,
        a_gateway(engine, engine, backends=[{"model": "m1"}, {"model": "m2"}]) as gw,
    ):
        headers = {"content-type": "multipart/form-data; boundary=other"}
        reply = await gw.request("POST", PATH, form((MODEL, b"m1"), SMALL), headers)

        assert (reply.status, reply.error["param"]) == (400, "model")


async def test_other_answers_than_json_pass_as_they_are() -> None:
    """Case 25."""
    events = [b'data: {"choices":[{"delta":{"content":"he"}}]}\n\n', b"data: [DONE]\n\n"]
    stream = (b'Content-Disposition: form-data; name="stream"', b"true")
    async with a_fake_backend(streams(*events)) as engine, a_gateway(engine) as gw:
        wire = form((MODEL, b"m1"), stream, SMALL)
        assert (await gw.request("POST", PATH, wire, FORM)).body == b"".join(events)

        engine.script = answers(b"WEBVTT\n\n00:00.000", content_type="text/vtt")
        reply = await gw.request("POST", PATH, wire, FORM)
        assert reply.body == b"WEBVTT\n\n00:00.000"
        assert reply.headers["content-type"] == "text/vtt"


async def test_a_small_upload_is_tried_elsewhere_and_a_large_one_is_not() -> None:
    async with (
        a_fake_backend(resets) as broken,
        a_fake_backend(answers(TEXT)) as fine,
        a_gateway(broken, fine) as gw,
    ):
        for _ in range(2):
            wire = form((MODEL, b"m1"), SMALL)
            assert (await gw.request("POST", PATH, wire, FORM)).status == 200
        fine.script = resets
        before = len(broken.calls) + len(fine.calls)
        reply = await gw.request("POST", PATH, form((MODEL, b"m1"), BIG), FORM)

        assert reply.status == 502
        assert len(broken.calls) + len(fine.calls) == before + 1


async def upload(
    gw: Running, wire: bytes, length: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin an upload of `length` bytes and send `wire` of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {FORM['content-type']}\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % length + wire)
    await writer.drain()
    return reader, writer


async def test_an_early_refusal_reaches_the_client() -> None:
    """Case 137."""

    async def too_large(exchange: Exchange) -> None:
        await exchange.answer(b'{"detail": "too large"}', status="413 No")
        exchange.close()

    async with a_fake_backend(too_large) as engine, a_gateway(engine) as gw:
        engine.reads_bytes = 1_000_000
        wire = form((MODEL, b"m1"), BIG)
        reader, writer = await upload(gw, wire[:4_000_000], len(wire))
        async with asyncio.timeout(5):
            assert b"413" in await reader.readline()
        writer.close()


async def test_a_client_that_stops_sending_is_told_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cases 130 and 137."""
    monkeypatch.setattr(uploads, "BODY_S", 0.3)
    wire = form((MODEL, b"m1"), BIG)
    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine) as gw:
        early, early_writer = await upload(gw, wire[:1000], len(wire))
        late, late_writer = await upload(gw, wire[: HELD_BYTES + 100_000], len(wire))
        for reader in (early, late):
            async with asyncio.timeout(5):
                assert b"408" in await reader.readline()
        await gw.until(lambda: gw.gateway.driver.in_flight == 0)
        early_writer.close()
        late_writer.close()
        assert gw.settled() == {("failed", "reset"): 1}


async def test_a_client_that_leaves_in_its_upload_takes_it_along() -> None:
    wire = form((MODEL, b"m1"), BIG)
    async with a_fake_backend(answers(TEXT)) as engine, a_gateway(engine) as gw:
        _, writer = await upload(gw, wire[:-1000], len(wire))
        await gw.until(lambda: gw.gateway.scheduler.running == 1)
        writer.transport.abort()

        await gw.until(lambda: gw.settled() == {("abandoned", ""): 1})
        assert engine.calls == []


async def test_large_uploads_are_not_held_in_memory() -> None:
    """Case 137: five uploads of 40 MB at once through a process that may not grow by as much."""
    size = 40_000_000
    head, tail = form((MODEL, b"m1"), (FILE, b"#")).split(b"#")

    async def counts(exchange: Exchange) -> None:
        assert len(exchange.seen.body) == 100_000
        left = size + len(head) + len(tail) - 100_000
        while left > 0:
            piece = await exchange.reader.read(1_000_000)
            assert piece
            left -= len(piece)
        await exchange.answer(TEXT)

    async def pieces() -> object:
        yield head
        for _ in range(size // 200_000):
            yield b"z" * 200_000
        yield tail

    async with a_fake_backend(counts) as engine, a_gateway(engine) as gw:
        engine.reads_bytes = 100_000
        engine.watches = False
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def one() -> int:
            headers = {**FORM, "content-length": str(size + len(head) + len(tail))}
            async with gw.session.post(gw.url + PATH, data=pieces(), headers=headers) as response:
                return response.status

        assert await asyncio.gather(*[one() for _ in range(5)]) == [200] * 5
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert grown_kb < 40_000
