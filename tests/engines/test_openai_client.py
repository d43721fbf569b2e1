"""OpenAI's own client, with only its base URL changed, on each engine."""

import asyncio
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.engines.conftest import Site

MODELS = ("tiny", "paced", "smollm2")
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a tuple?"}]


@pytest.fixture
def client(site: Site) -> Iterator[OpenAI]:
    """The client."""
    with OpenAI(base_url=site.gateway.url + "/v1", api_key="none") as client:
        yield client


def test_models_are_listed_with_their_context(client: OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}

    assert set(listed) == set(MODELS)
    assert (listed["tiny"].model_extra or {})["max_model_len"] == 4096


@pytest.mark.parametrize("model", MODELS)
def test_it_gets_whole_answers(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8)

    assert answer.model == model
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("model", MODELS)
def test_it_gets_streams(client: OpenAI, model: str) -> None:
    with client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    assert chunks[-1].usage is not None
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] in ("stop", "length")


@pytest.mark.parametrize("model", MODELS)
def test_it_gets_completions(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="A tuple is", max_tokens=4)

    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 4


def test_it_works_from_many_coroutines_at_once(site: Site) -> None:
    async def ask_all() -> list[int]:
        async with AsyncOpenAI(base_url=site.gateway.url + "/v1", api_key="none") as client:
            calls = [
                client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6)
                for model in MODELS * 4
            ]
            answers = await asyncio.gather(*calls)
        return [len(answer.choices) for answer in answers]

    assert asyncio.run(ask_all()) == [1] * 12


def test_its_errors_have_the_right_class(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        client.chat.completions.create(model="nope", messages=MESSAGES)
    with pytest.raises(BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)


def test_structured_output_reaches_an_engine_that_has_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=40,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "verdict", "schema": {"enum": ["yes", "no"]}},
        },
    )

    assert answer.choices[0].message.content in ('"yes"', '"no"')
