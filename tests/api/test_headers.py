"""What a client may say to an engine and an engine to a client, and nothing more."""

import gzip
import zlib

import pytest

from tests.api.harness import a_gateway, chat
from tests.backends.fake_backend import WHOLE, Exchange, a_fake_backend, answers, plain

pytestmark = pytest.mark.anyio
KEY = "sk-client-secret"


async def test_headers_of_one_hop_stay_on_it() -> None:
    """Case 97."""

    async def script(exchange: Exchange) -> None:
        hop = ("Connection: X-B", "X-B: 1", "Keep-Alive: timeout=9", "Proxy-Authenticate: Basic")
        await exchange.answer(WHOLE, headers=(*hop, "X-C: kept"))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(
            chat(),
            headers={
                "Connection": "X-Secret-Hop, traceparent",
                "X-Secret-Hop": "1",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "Keep-Alive": "timeout=1",
                "TE": "trailers",
                "Proxy-Authorization": "Basic x",
                "Proxy-Connection": "x",
                "Trailer": "X",
            },
        )

        sent, got = engine.calls[0].headers, {name.lower() for name in reply.headers}
        assert set(sent) == {
            "host",
            "content-type",
            "content-length",
            "accept-encoding",
            "x-request-id",
        }
        assert reply.body == WHOLE
        assert not got & {"x-b", "keep-alive", "proxy-authenticate", "connection"}
        assert reply.headers["x-c"] == "kept"


async def test_a_clients_credentials_never_reach_an_engine() -> None:
    """Case 100."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(
            chat(),
            path=f"/v1/chat/completions?api_key={KEY}&x=a%2Fb&x=2&empty=",
            headers={
                "Authorization": f"Bearer {KEY}",
                "X-Api-Key": KEY,
                "Api-Key": KEY,
                "Cookie": f"s={KEY}",
                "Proxy-Authorization": f"Basic {KEY}",
            },
        )

        everything = b"".join(seen.head + seen.body for seen in engine.calls + engine.probes)
        assert KEY.encode() not in everything
        # Case 106: the rest of the query is passed as it came.
        assert engine.calls[0].target == "/v1/chat/completions?x=a%2Fb&x=2&empty="


async def test_each_backend_is_sent_its_own_key_on_every_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cases 101 and 143."""
    monkeypatch.setenv("ENGINE_KEY", "bkey")
    async with a_fake_backend(plain) as engine:
        engine.required_key = "bkey"
        async with a_gateway(engine, backends=[{"api_key_env": "ENGINE_KEY"}]) as gw:
            await gw.post(chat(), headers={"Authorization": f"Bearer {KEY}"})

            seen = engine.calls + engine.probes
            assert {call.headers["authorization"] for call in seen} == {"Bearer bkey"}


async def test_headers_that_route_or_rank_are_obeyed_by_nobody() -> None:
    """Case 194, and what `product.md` calls privileged."""
    privileged = {
        "x-vllm-priority": "-5",
        "x-data-parallel-rank": "1",
        "x-gateway-destination-endpoint": "evil:1",
        "x-prefiller-host-port": "evil:1",
        "target-pod": "evil",
        "routing-strategy": "random",
        "x-forwarded-host": "evil",
        "x-workflow-id": "w",
        "x-user-name": "Zoë",
    }
    body = chat(priority=-7, kv_transfer_params={"a": 1}, request_id="mine")
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        assert (await gw.post(body, headers=privileged)).status == 200

        assert not set(engine.calls[0].headers) & set(privileged)
        assert engine.calls[0].json == {**chat()}


async def test_an_engines_priority_is_the_gateways_own() -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(
            engine, backends=[{"priority_scheduling": True}], policy={"name": "hexsage"}
        ) as gw,
    ):
        await gw.post(chat(priority=3, stream=True))

        sent = engine.calls[0].json
        assert isinstance(sent["priority"], int)
        assert {**sent, "priority": 0, "stream_options": 0} == {
            **chat(stream=True),
            "priority": 0,
            "stream_options": 0,
        }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("job-1", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("a" * 6000, False),
        ("with space", False),
        ('quo"te', False),
        ("%0d%0aX:y", False),
        ("", False),
        ("Zoë", False),
    ],
)
async def test_a_request_id_is_kept_if_it_is_fit_to_be_repeated(given: str, kept: bool) -> None:
    """Case 102."""
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        for reply in (
            await gw.post(chat(), headers={"x-request-id": given}),
            await gw.post({}, headers={"x-request-id": given}),
            await gw.request("GET", "/v1/models", headers={"x-request-id": given}),
            await gw.request("GET", "/nowhere", headers={"x-request-id": given}),
        ):
            (told,) = [value for name, value in reply.raw_headers if name == b"x-request-id"]
            assert (told.decode() == given) is kept
            assert 0 < len(told) <= 128


async def test_odd_bytes_in_headers_harm_nobody() -> None:
    """Case 104."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(WHOLE, headers=("X-Name: Zo\xeb", "X-Foo: 1", "X-Foo: 2"))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(), headers={"baggage": "☃"})

        assert (b"x-name", b"Zo\xeb") in reply.raw_headers
        # Case 99: repeated headers are kept apart, the server's own are not doubled.
        assert [value for name, value in reply.raw_headers if name == b"x-foo"] == [b"1", b"2"]
        assert "baggage" not in engine.calls[0].headers
        names = [name for name, _ in reply.raw_headers]
        assert names.count(b"date") == 1
        assert names.count(b"server") == 0


async def test_a_trace_goes_on() -> None:
    """Case 103."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        await gw.post(chat(), headers={"traceparent": parent, "tracestate": "a=1"})

        assert engine.calls[0].headers["traceparent"] == parent
        assert engine.calls[0].headers["tracestate"] == "a=1"


@pytest.mark.parametrize("asks", [None, "gzip"])
@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [("gzip", gzip.compress(WHOLE)), ("deflate", zlib.compress(WHOLE)), ("br", b"\x0b\x02\x80")],
)
async def test_a_compressed_answer_is_never_mislabelled(
    asks: str | None, encoding: str, compressed: bytes
) -> None:
    """Case 26: engines are asked for plain bytes; those that compress all the same are undone."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(compressed, headers=(f"content-encoding: {encoding}",))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat(), headers={"accept-encoding": asks} if asks else None)

        assert engine.calls[0].headers["accept-encoding"] == "identity"
        assert "content-encoding" not in reply.headers
        assert int(reply.headers["content-length"]) == len(reply.body)
        if encoding == "br":
            assert (reply.status, reply.error["code"]) == (502, "bad_answer")
        else:
            assert reply.body == WHOLE
            assert gw.tokens()[1] == 5


async def test_a_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(b" " * 80_000_000)

    async def script(exchange: Exchange) -> None:
        await exchange.answer(bomb, headers=("content-encoding: gzip",))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        assert (await gw.post(chat())).error["code"] == "bad_answer"


async def test_engines_cors_headers_are_not_the_gateways() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(WHOLE, headers=("access-control-allow-origin: *",))

    async with a_fake_backend(script) as engine, a_gateway(engine) as gw:
        assert "access-control-allow-origin" not in (await gw.post(chat())).headers


async def test_an_answer_says_where_it_comes_from_to_those_who_ask() -> None:
    async with a_fake_backend(plain) as engine, a_gateway(engine) as gw:
        quiet = await gw.post(chat())
        told = await gw.post(chat(stream=True), headers={"x-hexsage-explain": "true"})

        assert not any(name.lower().startswith("x-hexsage") for name in quiet.headers)
        assert told.headers["x-hexsage-backend"] == "e0"
        assert told.headers["x-hexsage-policy"] == "round_robin+fcfs"
        assert "e0" in told.headers["x-hexsage-scores"]
        for reply in (quiet, told):
            parts = [part.split(";")[0] for part in reply.headers["server-timing"].split(", ")]
            assert parts == ["queue", "upstream", "gateway"]


async def test_answers_are_for_the_engine_that_gave_them_not_for_its_page() -> None:
    async with a_fake_backend(answers(WHOLE)) as engine, a_gateway(engine) as gw:
        reply = await gw.post(chat())

        assert reply.headers["content-type"] == "application/json"
