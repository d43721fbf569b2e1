"""Hugging Face's `text-generation` client, unchanged, before a gateway with a TGI behind it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
import text_generation
from text_generation.errors import BadRequestError, NotFoundError

from tests.api.harness import a_gateway
from tests.conformance.engines import PATIENT, emulated

pytestmark = [
    pytest.mark.anyio,
    # The client is older than the pydantic that it runs on.
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
]
T = TypeVar("T")
TOKENS = 6


async def through_the_gateway(kind: str, talk: Callable[[str], T]) -> T:
    """Let a blocking client talk to a gateway before an emulated engine; its books must balance."""
    async with (
        emulated(kind) as engine,
        a_gateway(engine, backends=[{"kind": kind}], health=PATIENT) as gw,
    ):
        return await asyncio.to_thread(talk, gw.url)


async def test_it_generates_whole_and_streamed() -> None:
    def talk(url: str) -> tuple[str, str]:
        client = text_generation.Client(url)
        whole = client.generate("hello", max_new_tokens=TOKENS)
        assert whole.details.generated_tokens == TOKENS
        *pieces, last = client.generate_stream("hello", max_new_tokens=TOKENS)
        assert last.details is not None
        assert last.details.generated_tokens == TOKENS
        texts = [piece.token.text for piece in (*pieces, last) if not piece.token.special]
        assert "".join(texts) == last.generated_text
        return whole.generated_text, str(last.generated_text)

    whole, streamed = await through_the_gateway("tgi", talk)

    assert whole == streamed


async def test_what_is_wrong_is_an_error_of_its_own() -> None:
    def talk(url: str) -> None:
        client = text_generation.Client(url)
        with pytest.raises(BadRequestError, match="less than"):
            client.generate("x" * 50_000, max_new_tokens=TOKENS)
        with pytest.raises(BadRequestError, match="less than"):
            list(client.generate_stream("x" * 50_000, max_new_tokens=TOKENS))

    await through_the_gateway("tgi", talk)


async def test_tokens_are_counted_and_the_root_shows_nothing_else() -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": TOKENS, "details": True}}
    async with (
        emulated("tgi") as engine,
        a_gateway(engine, backends=[{"kind": "tgi"}], health=PATIENT) as gw,
    ):
        whole = await gw.post(body, "/")
        streamed = await gw.post({**body, "stream": True}, "/")

        assert whole.status == streamed.status == 200
        assert whole.body.startswith(b'[{"generated_text":')
        assert len(streamed.events) == TOKENS
        assert gw.tokens()[1] == 2 * TOKENS
        shown = await gw.request("GET", "/")
        assert (shown.status, shown.error["code"]) == (404, "not_found")
        assert "the API is at /v1 and the dashboard at /dashboard" in str(shown.error["message"])


async def test_without_a_tgi_there_is_nothing_at_the_root() -> None:
    def talk(url: str) -> None:
        with pytest.raises(NotFoundError):
            text_generation.Client(url).generate("hello")

    await through_the_gateway("vllm", talk)
