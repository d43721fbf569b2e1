"""Bounds that the configuration sets on bodies and answers; keys that change while it runs."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.calls import check_depth
from gateway.api.errors import ApiError
from gateway.config.serving import MAX_JSON_DEPTH
from gateway.keys_file import KeyEntry, hash_of, write_keys
from tests.api.harness import a_gateway, chat
from tests.api.test_fleet import Files, a_configured_gateway, do, entry
from tests.backends.fake_backend import a_fake_backend, after, answers, frame, plain, streams

Nested = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\a', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner)
    ),
    max_leaves=20,
)


def depth(value: object) -> int:
    """How deep it is nested."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(Nested, st.integers(1, 6), st.booleans())
def test_depth_is_counted_as_a_parser_would(value: object, limit: int, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()

    if depth(value) <= limit:
        check_depth(raw, limit)
    else:
        with pytest.raises(ApiError):
            check_depth(raw, limit)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_body_may_be_nested_so_deep_and_no_deeper(path: str) -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, limits={"max_json_depth": 5}) as gw,
    ):
        refused = await gw.post(chat(prompt="x", extra=[[[[[]]]]]), path)
        taken = await gw.post(chat(prompt="x", extra=[[[[]]]]), path)

        assert (refused.status, refused.error["code"]) == (400, "invalid_json")
        assert "nested deeper than 5" in str(refused.error["message"])
        assert taken.status == 200


@pytest.mark.anyio
async def test_the_deepest_body_that_may_be_taken_can_be_written_anew() -> None:
    deepest: object = 1
    for _ in range(MAX_JSON_DEPTH - 1):
        deepest = [deepest]
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(
            engine,
            limits={"max_json_depth": MAX_JSON_DEPTH},
            models={"other": {"target": "m1"}},
        ) as gw,
    ):
        reply = await gw.post({**chat(extra=deepest), "model": "other"})

        assert reply.status == 200
        assert engine.calls[0].json["extra"] == deepest


@pytest.mark.anyio
async def test_a_body_must_come_within_its_time() -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, limits={"body_timeout_s": 0.2}) as gw,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 50\r\n\r\n{"
        writer.write(head)
        async with asyncio.timeout(5):
            reply = await reader.read()
        writer.close()

        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in reply


@pytest.mark.anyio
async def test_an_engine_may_answer_so_much_and_no_more() -> None:
    bounds = {"max_answer_bytes": 2000, "max_error_bytes": 500, "max_event_bytes": 100_000}
    long = "x" * 3000
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, limits=bounds, retries={"max_attempts": 1}) as gw,
    ):
        engine.script = answers(json.dumps({"choices": [], "x": long}).encode())
        assert (await gw.post(chat())).error["code"] == "bad_answer"

        engine.script = streams(frame("ok"), frame("x" * 4_000_000))
        events = (await gw.post(chat(stream=True))).events
        assert json.loads(events[-1])["error"]["code"] == "bad_answer"

        engine.script = answers(long.encode(), "500 Internal Server Error", "text/plain")
        reply = await gw.post(chat())
        assert reply.status >= 500
        assert len(reply.body) < 1000


@pytest.mark.anyio
async def test_keys_change_while_the_gateway_runs(tmp_path: Path) -> None:
    files, keys = Files(tmp_path), tmp_path / "keys.yaml"
    one, two = (KeyEntry(name=name, sha256=hash_of(f"hsk-{name}")) for name in ("one", "two"))
    auth = {name: {"authorization": f"Bearer hsk-{name}"} for name in ("one", "two")}
    write_keys(keys, [one])
    async with a_fake_backend(after(0.2)) as engine:
        files.write(backends=[entry(engine)], keys_file=str(keys))
        async with a_configured_gateway(files, engine) as (gw, _):
            gw.canary = False
            assert (await gw.post(chat(), headers=auth["one"])).status == 200
            assert (await gw.post(chat(), headers=auth["two"])).status == 401
            running = asyncio.ensure_future(gw.post(chat(), headers=auth["one"]))
            await gw.until(lambda: len(engine.calls) == 2)

            write_keys(keys, [two.model_copy(update={"weight": 3.0, "queue_share": 0.5})])
            await gw.until(lambda: "two" in gw.gateway.scheduler.admission.limits.tenant_shares)

            assert (await gw.post(chat(), headers=auth["one"])).status == 401
            assert (await gw.post(chat(), headers=auth["two"])).status == 200
            assert (await running).status == 200  # what is admitted is finished

            keys.write_text("keys: 7\n")
            assert (await do(gw, "POST", "/reload")).status == 400
            assert (await gw.post(chat(), headers=auth["two"])).status == 200


@pytest.mark.anyio
async def test_a_key_never_shows_in_the_log(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="one", sha256=hash_of("hsk-secret"))])
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, keys_file=tmp_path / "keys.yaml", allow_anonymous=True) as gw,
    ):
        for key in ("hsk-secret", "hsk-secret-wrong"):
            await gw.post(chat(), headers={"authorization": f"Bearer {key}"})
            await gw.post(b"{", headers={"authorization": f"Bearer {key}"})
        # The harness itself refuses a log with that word in it.
