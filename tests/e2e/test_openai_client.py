"""The `openai` client works unchanged against the gateway: only its base URL is another."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import BaseModel

TOOLS: list[ChatCompletionToolUnionParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the weather in Turin?"}
]


@pytest.fixture
def client(gateway: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway}/v1", api_key="unused") as client:
        yield client


def test_models_are_listed(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"m1", "gpt-x"}
    assert client.models.retrieve("m1").id == "m1"


def test_a_whole_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m1",
        messages=QUESTION,
        max_tokens=20,
    )

    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer._request_id is not None


def test_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m1",
        messages=QUESTION,
        max_tokens=20,
        stream=True,
    )
    chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m1",
        messages=QUESTION,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = stream

    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


def test_an_alias_answers_under_its_own_name(client: OpenAI) -> None:
    answer = client.completions.create(model="gpt-x", prompt="Once", max_tokens=5)

    assert answer.model == "gpt-x"


def test_tools_are_passed_through_and_calls_come_back(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m1",
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
    )

    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"


class Said(BaseModel):
    """What a structured answer is parsed into."""

    text: str


def test_a_structured_answer_is_parsed(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="m1", messages=QUESTION, response_format=Said)

    assert answer.choices[0].message.parsed is not None
    assert answer.choices[0].message.parsed.text


def test_a_tool_call_is_streamed(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="m1", messages=QUESTION, tools=TOOLS, tool_choice="required"
    ) as stream:
        for _ in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls

    assert calls
    assert calls[0].function.name == "get_weather"


def test_embeddings(client: OpenAI) -> None:
    answer = client.embeddings.create(model="gpt-x", input=["one", "two"])

    assert answer.model == "gpt-x"
    assert [len(entry.embedding) for entry in answer.data] == [64, 64]
    assert answer.usage.prompt_tokens > 0


def test_a_response_and_what_is_kept_of_it(client: OpenAI) -> None:
    answer = client.responses.create(model="m1", input="Say hello.", max_output_tokens=8)

    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens > 0
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_unknown")


def test_a_streamed_response(client: OpenAI) -> None:
    with client.responses.stream(model="gpt-x", input="Say hello.", instructions="Be kind.") as it:
        kinds = [event.type for event in it]
        final = it.get_final_response()

    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert final.model == "gpt-x"
    kept = client.responses.retrieve(final.id)
    assert (kept.output_text, kept.model) == (final.output_text, "gpt-x")


def test_a_structured_response(client: OpenAI) -> None:
    answer = client.responses.parse(model="m1", input="Say hello.", text_format=Said)

    assert answer.output_parsed is not None
    assert answer.output_parsed.text


def test_our_headers_travel_with_any_client(client: OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(
        model="m1",
        messages=QUESTION,
        max_tokens=5,
        extra_headers={"x-workflow-id": "w-1", "x-hexsage-explain": "true"},
        extra_body={"metadata": {"workflow-stage": "s"}},
    )

    assert answer.headers["x-hexsage-backend"] in ("a100-80g-0", "l40s-1")


def test_an_unknown_model_is_the_clients_own_exception(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(
            model="nope",
            messages=QUESTION,
        )

    assert error.value.code == "model_not_found"
    assert error.value.request_id is not None


def test_an_engines_own_refusal_comes_through(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="m1",
            messages=QUESTION,
            temperature=-1,
        )

    assert error.value.param == "temperature"


async def ask(client: AsyncOpenAI, number: int) -> str:
    stream = await client.chat.completions.create(
        model="m1",
        messages=[{"role": "user", "content": f"Count to {number}."}],
        max_tokens=15,
        stream=True,
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_many_at_once(gateway: str) -> None:
    async with AsyncOpenAI(base_url=f"{gateway}/v1", api_key="unused") as client:
        answers = await asyncio.gather(*[ask(client, number) for number in range(20)])

    assert all(answers)
