"""langchain-openai works unchanged: only its base URL is another."""

import pytest
from pydantic import BaseModel, SecretStr

langchain = pytest.importorskip("langchain_openai")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEY = SecretStr("unused")


class Said(BaseModel):
    """What a structured answer is parsed into."""

    text: str


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def test_chat_whole_and_streamed(gateway: str) -> None:
    chat = langchain.ChatOpenAI(base_url=f"{gateway}/v1", api_key=KEY, model="m1", max_tokens=12)

    answer = chat.invoke("hello")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("hello"))


def test_tools_and_structured_answers(gateway: str) -> None:
    chat = langchain.ChatOpenAI(base_url=f"{gateway}/v1", api_key=KEY, model="gpt-x")

    (call,) = chat.bind_tools([get_weather], tool_choice="required").invoke("Turin?").tool_calls
    assert call["name"] == "get_weather"
    assert chat.with_structured_output(Said).invoke("hello").text


def test_responses(gateway: str) -> None:
    chat = langchain.ChatOpenAI(
        base_url=f"{gateway}/v1", api_key=KEY, model="m1", use_responses_api=True
    )

    assert chat.invoke("hello").text


def test_embeddings(gateway: str) -> None:
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{gateway}/v1", api_key=KEY, model="m1", check_embedding_ctx_length=False
    )

    assert len(embeddings.embed_query("hello")) == 64


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_many_at_once(gateway: str) -> None:
    chat = langchain.ChatOpenAI(base_url=f"{gateway}/v1", api_key=KEY, model="m1", max_tokens=8)

    answers = await chat.abatch([f"hello {number}" for number in range(8)])

    assert all(answer.content for answer in answers)
