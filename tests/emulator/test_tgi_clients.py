"""Hugging Face's own clients talk to the emulated TGI unchanged."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import text_generation
from huggingface_hub import InferenceClient
from huggingface_hub.errors import TextGenerationError, ValidationError
from text_generation.errors import ValidationError as ClientValidationError

from gateway.emulator.server import serving
from tests.emulator.asgi import some_options

# The client is older than the pydantic that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
T = TypeVar("T")
QUESTION = [{"role": "user", "content": "What is deep learning?"}]


def served(talk: Callable[[str], T], **changes: Any) -> T:
    """Serve an emulated TGI while a blocking client talks to it."""

    async def main() -> T:
        options = some_options(kind="tgi", speed=100.0, **changes)
        async with serving([options]) as server:
            [port] = server.app.engines
            return await asyncio.to_thread(talk, f"http://127.0.0.1:{port}")

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_the_hubs_client_generates() -> None:
    def talk(url: str) -> None:
        client = InferenceClient(url)
        text = client.text_generation("hello", max_new_tokens=5)
        assert len(text.split()) == 5

        full = client.text_generation("hello", max_new_tokens=5, details=True)
        assert full.generated_text == text
        assert full.details is not None
        assert full.details.finish_reason == "length"
        assert len(full.details.tokens) == 5

        pieces = client.text_generation("hello", max_new_tokens=5, stream=True)
        assert "".join(pieces) == text

        *_, last = client.text_generation("hello", max_new_tokens=5, details=True, stream=True)
        assert last.generated_text == text
        assert last.details is not None
        assert last.details.generated_tokens == 5

    served(talk)


def test_the_hubs_client_chats() -> None:
    def talk(url: str) -> None:
        client = InferenceClient(url)
        whole = client.chat_completion(QUESTION, max_tokens=6)
        assert whole.usage.completion_tokens == 6
        assert whole.choices[0].finish_reason == "length"

        chunks = list(client.chat_completion(QUESTION, max_tokens=6, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content

    served(talk)


def test_the_hubs_client_understands_its_errors() -> None:
    def talk(url: str) -> None:
        client = InferenceClient(url)
        with pytest.raises(ValidationError, match="top_p"):
            client.text_generation("hello", top_p=1.0)
        with pytest.raises(TextGenerationError):
            list(client.text_generation("hello", top_p=1.0, stream=True))

    served(talk)


def test_the_text_generation_client_generates_and_chats() -> None:
    def talk(url: str) -> None:
        client = text_generation.Client(url)
        answer = client.generate("hello", max_new_tokens=5)
        assert answer.details.generated_tokens == 5
        assert answer.details.finish_reason.value == "length"

        *_, last = client.generate_stream("hello", max_new_tokens=5)
        assert last.generated_text == answer.generated_text

        with pytest.raises(ClientValidationError, match="stop"):
            client.generate("hello", stop_sequences=list("abcde"))

    served(talk)


def test_the_blocking_and_the_awaiting_client_say_the_same() -> None:
    async def talk(url: str) -> str:
        client = text_generation.AsyncClient(url)
        pieces = [piece async for piece in client.generate_stream("hello", max_new_tokens=3)]
        return pieces[-1].generated_text or ""

    blocking = served(lambda url: text_generation.Client(url).generate("hello", max_new_tokens=3))
    awaiting = served(lambda url: asyncio.run(talk(url)))
    assert awaiting == blocking.generated_text
