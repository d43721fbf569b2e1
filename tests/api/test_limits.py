"""What a key may use: the buckets by themselves, then over HTTP (cases 44 to 49)."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import ApiError
from gateway.api.limits import Account, KeyLimits, TokenBucket
from gateway.keys_file import KeyEntry, hash_of, write_keys
from tests.api.harness import Reply, Running, a_gateway, chat
from tests.backends.fake_backend import (
    MODEL,
    a_fake_backend,
    after,
    answers,
    frame,
    plain,
    streams,
)

KEY = "hsk-one"
AUTH = {"authorization": f"Bearer {KEY}"}


def limits(**given: int) -> KeyLimits:
    """Limits by their short names."""
    names = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
    return KeyLimits(**{names.get(name, name): value for name, value in given.items()})


# Buckets


def test_a_bucket_holds_a_minutes_worth_and_fills_steadily() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(60, now=0.0)

    assert bucket.wait_s(1, now=0.0) == pytest.approx(1.0)
    assert bucket.wait_s(1, now=1.0) == 0
    assert bucket.level(now=30.0) == pytest.approx(30)
    assert bucket.level(now=1e6) == 60


def test_a_bucket_of_one_gives_one() -> None:
    """Case 49."""
    bucket = TokenBucket(1, now=0.0)
    assert bucket.wait_s(1, now=0.0) == 0
    bucket.take(1, now=0.0)

    assert bucket.wait_s(1, now=0.0) == pytest.approx(60)


def test_what_no_bucket_could_hold_may_go_when_it_is_full() -> None:
    bucket = TokenBucket(10, now=0.0)
    assert bucket.wait_s(1000, now=0.0) == 0
    bucket.take(1000, now=0.0)

    assert bucket.wait_s(1, now=0.0) == pytest.approx((990 + 1) * 6)


def test_a_bucket_of_another_size_is_as_full() -> None:
    bucket = TokenBucket(100, now=0.0)
    bucket.take(75, now=0.0)

    assert bucket.resized(1000, now=0.0).level(now=0.0) == pytest.approx(250)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=40))
def test_in_no_minute_is_more_given_than_two_minutes_worth(asks: list[tuple[int, int]]) -> None:
    """What was saved up, and what came in."""
    bucket, now, given_out = TokenBucket(30, now=0.0), 0.0, []
    for pause_s, amount in asks:
        now += pause_s
        if not bucket.wait_s(amount, now):
            bucket.take(amount, now)
            given_out.append((now, amount))
    for at, _ in given_out:
        assert sum(n for then, n in given_out if at <= then < at + 60) <= 60


# Accounts


def test_a_refusal_by_one_limit_costs_nothing_of_another() -> None:
    """Case 47."""
    account = Account(limits(rpm=10, tpm=1000, concurrency=1), now=0.0)
    with closing(account.enter(10, now=0.0)):
        for _ in range(20):
            with pytest.raises(ApiError) as refused:
                account.enter(10, now=0.0)
            assert refused.value.code == "concurrency_limit"
    for _ in range(9):
        with closing(account.enter(10, now=0.0)):
            pass
    with pytest.raises(ApiError) as refused:
        account.enter(10, now=0.0)
    assert refused.value.code == "request_rate_limit"
    assert account.in_flight == 0


def test_tokens_are_charged_by_prediction_and_corrected_by_what_was_used() -> None:
    account = Account(limits(tpm=1000), now=0.0)
    with closing(account.enter(100, now=0.0)) as permit:
        permit.expect(400, now=0.0)
        with pytest.raises(ApiError) as refused, closing(account.enter(501, now=0.0)):
            pass
        assert refused.value.code == "token_rate_limit"
        permit.settle(150, now=0.0)

    with closing(account.enter(850, now=0.0)):
        pass


def test_who_is_refused_for_the_answers_length_has_paid_nothing() -> None:
    account = Account(limits(rpm=1, tpm=1000), now=0.0)
    with (
        closing(account.enter(900, now=0.0)) as permit,
        pytest.raises(ApiError),
    ):
        permit.expect(200, now=0.0)

    with closing(account.enter(1000, now=0.0)):
        pass


def test_headers_tell_what_is_left() -> None:
    account = Account(limits(rpm=60, tpm=600), now=0.0)
    with closing(account.enter(100, now=0.0)):
        told = dict(account.headers(now=0.0))

    assert told == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1000ms",
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"500",
        b"x-ratelimit-reset-tokens": b"10000ms",
    }
    assert Account(limits(concurrency=1), now=0.0).headers(now=0.0) == []


def test_changed_limits_go_on_from_what_is_used() -> None:
    account = Account(limits(rpm=2, concurrency=1), now=0.0)
    permit = account.enter(0, now=0.0)

    account.change(limits(rpm=4, concurrency=2), now=0.0)

    with closing(permit):
        for _ in range(2):
            with closing(account.enter(0, now=0.0)):
                pass
        with pytest.raises(ApiError):
            account.enter(0, now=0.0)


# Over HTTP


def a_keys_file(tmp_path: Path, **given: object) -> dict[str, object]:
    """Settings with one key; others may come without, for the canary."""
    entry = KeyEntry.model_validate({"name": "one", "sha256": hash_of(KEY), **given})
    write_keys(tmp_path / "keys.yaml", [entry])
    return {"keys_file": tmp_path / "keys.yaml", "allow_anonymous": True}


async def burst(gw: Running, count: int, body: object | None = None) -> list[Reply]:
    """Send calls at once."""
    calls = [gw.post(body or chat(), headers=AUTH) for _ in range(count)]
    return await asyncio.gather(*calls)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"rpm": 5}, "request_rate_limit"),
        ({"concurrency": 5}, "concurrency_limit"),
        ({"tpm": 100}, "token_rate_limit"),
    ],
)
async def test_a_burst_gets_what_the_limit_says_and_not_one_more(
    tmp_path: Path, given: dict[str, int], code: str
) -> None:
    """Case 48."""
    async with (
        a_fake_backend(after(0.3)) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, **given)) as gw,
    ):
        replies = await burst(gw, 60)

        good = [reply for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status == 429]
        assert len(good) + len(refused) == 60
        assert len(engine.calls) == len(good)
        if "tpm" in given:
            assert 1 <= len(good) <= 10  # a prompt of some 5 tokens and 8 for the answer
        else:
            assert len(good) == 5
        assert {reply.error["code"] for reply in refused} == {code}
        assert {reply.error["type"] for reply in refused} == {"rate_limit_error"}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert all(reply.headers["x-should-retry"] == "true" for reply in refused)
        metrics = (await gw.request("GET", "/metrics")).body.decode()
        counted = f'hexsage_key_refusals_total{{code="{code}",tenant="one"}} {len(refused)}.0'
        assert counted in metrics
        assert f"hexsage_overhead_seconds_count {len(good)}.0" in metrics


@pytest.mark.anyio
async def test_one_means_one(tmp_path: Path) -> None:
    """Case 49."""
    async with (
        a_fake_backend(after(0.2)) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, concurrency=1)) as gw,
    ):
        statuses = sorted(reply.status for reply in await burst(gw, 2))

        assert statuses == [200, 429]


@pytest.mark.anyio
async def test_calls_that_make_no_sense_cost_nothing(tmp_path: Path) -> None:
    """Case 46."""
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, rpm=3, tpm=100_000, concurrency=1)) as gw,
    ):
        for body in (b"{", b"[]", {**chat(), "model": "nope"}):
            for _ in range(10):
                await gw.post(body, headers=AUTH)
        for _ in range(10):
            await gw.post({"model": MODEL}, headers=AUTH)
            await gw.post(chat(), headers={"authorization": "Bearer wrong"})

        replies = [await gw.post(chat(), headers=AUTH) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 200]
    assert replies[0].headers["x-ratelimit-limit-requests"] == "3"
    assert replies[0].headers["x-ratelimit-limit-tokens"] == "100000"


@pytest.mark.anyio
async def test_places_come_back_however_a_call_ends(tmp_path: Path) -> None:
    """Cases 44 and 45."""
    scripts = (
        answers(b"{}", "500 Internal Server Error"),
        answers(b"<html>", "502 Bad Gateway", "text/html"),
        answers(b"{", "200 OK"),
        streams(frame("x"), ends="reset"),
    )
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(
            engine, retries={"backoff_s": 0.001}, **a_keys_file(tmp_path, concurrency=2)
        ) as gw,
    ):
        for script in scripts:
            engine.script = script
            for _ in range(4):
                await gw.post(chat(stream=True), headers=AUTH)
        engine.script = after(30)
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gw.post(chat(), headers=AUTH), 0.05)
        await gw.until(lambda: gw.gateway.driver.in_flight == 0)
        engine.script = after(0.1)

        assert [reply.status for reply in await burst(gw, 2)] == [200, 200]


@pytest.mark.anyio
async def test_what_an_answer_used_is_what_is_charged(tmp_path: Path) -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, tpm=1000)) as gw,
    ):
        for stream in (False, True):
            await gw.post(chat(stream=stream), headers=AUTH)
        reply = await gw.post(chat(), headers=AUTH)

        # Two answers of 12 tokens; of the third only the estimate is charged yet.
        left = int(reply.headers["x-ratelimit-remaining-tokens"])
        assert 1000 - 24 - 40 < left <= 1000 - 24


@pytest.mark.anyio
async def test_an_engines_own_limits_are_not_the_clients(tmp_path: Path) -> None:
    headers = ["x-ratelimit-remaining-requests: 7", "x-ratelimit-limit-tokens: 1"]

    async def script(exchange: object) -> None:
        await exchange.answer(b'{"choices":[]}', headers=headers)  # type: ignore[attr-defined]  # an Exchange

    async with (
        a_fake_backend(script) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, rpm=50)) as gw,
    ):
        reply = await gw.post(chat(), headers=AUTH)

        assert reply.headers["x-ratelimit-remaining-requests"] == "49"
        assert "x-ratelimit-limit-tokens" not in reply.headers


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_a_key_may_come_in_any_of_the_usual_headers(tmp_path: Path, name: str) -> None:
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, **a_keys_file(tmp_path, tenant="acme")) as gw,
    ):
        value = f"Bearer {KEY}" if name == "authorization" else KEY

        assert (await gw.post(chat(), headers={name: value})).status == 200
        assert await _tenants(gw) == {"acme"}
        assert not any(KEY.encode() in call.head for call in engine.calls)


@pytest.mark.anyio
async def test_without_a_good_key_nothing_opens(tmp_path: Path) -> None:
    settings = {**a_keys_file(tmp_path), "allow_anonymous": False}
    async with a_fake_backend(plain) as engine, a_gateway(engine, **settings) as gw:
        gw.canary = False
        for headers in ({}, {"authorization": "Bearer x"}, {**AUTH, "x-api-key": "other"}):
            for method, path in (
                ("POST", "/v1/chat/completions"),
                ("POST", "/v1/completions"),
                ("GET", "/v1/models"),
                ("GET", f"/v1/models/{MODEL}"),
                ("POST", "/v1/workflows"),
                ("GET", "/v1/workflows"),
                ("GET", "/v1/workflows/w"),
            ):
                data = b"{}" if method == "POST" else None
                reply = await gw.request(method, path, data, headers)
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key"), path
                assert reply.headers["www-authenticate"] == "Bearer"
        assert engine.calls == []
        assert (await gw.post(chat(), headers=AUTH)).status == 200


@pytest.mark.anyio
async def test_a_key_opens_its_own_models_only(tmp_path: Path) -> None:
    settings = a_keys_file(tmp_path, models=["alias"])
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, models={"alias": {"target": MODEL}}, **settings) as gw,
    ):
        refused = await gw.post(chat(), headers=AUTH)
        unknown = await gw.post({**chat(), "model": "nope"}, headers=AUTH)
        good = await gw.post({**chat(), "model": "alias"}, headers=AUTH)
        listed = await gw.request("GET", "/v1/models", headers=AUTH)

        assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")
        assert (unknown.status, unknown.error["code"]) == (403, "model_not_allowed")
        assert good.status == 200
        assert isinstance(listed.json["data"], list)
        assert [card["id"] for card in listed.json["data"]] == ["alias"]
        assert (await gw.request("GET", f"/v1/models/{MODEL}", headers=AUTH)).status == 404


@pytest.mark.anyio
async def test_nobody_can_name_another_tenant(tmp_path: Path) -> None:
    """Case 199."""
    async with (
        a_fake_backend(plain) as engine,
        a_gateway(engine, **a_keys_file(tmp_path)) as gw,
    ):
        said = {"x-tenant": "boss", "x-user-id": "boss", "x-forwarded-for": "127.0.0.1"}
        await gw.post(chat(user="boss", tenant="boss"), headers={**AUTH, **said})

        assert await _tenants(gw) == {"one"}


async def _tenants(gw: Running) -> set[object]:
    """Who was charged, as the dashboard sees it."""
    state = await gw.request("GET", "/admin/state?decisions=1000")
    return {settle["tenant"] for settle in _settles(state.json["recent"])}


def _settles(entry: object) -> list[dict[str, object]]:
    if isinstance(entry, dict):
        found = [entry] if {"tenant", "outcome"} <= entry.keys() else []
        return found + [inner for value in entry.values() for inner in _settles(value)]
    if isinstance(entry, list):
        return [inner for value in entry for inner in _settles(value)]
    return []
