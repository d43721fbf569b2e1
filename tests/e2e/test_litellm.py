"""litellm works unchanged as a client. It is large: `pip install .[clients]`, or all is skipped."""

import os

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it looks one up on import
litellm = pytest.importorskip("litellm")

pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = [{"role": "user", "content": "hello"}]


def settings(gateway: str, model: str = "m1") -> dict[str, object]:
    """What every call says."""
    return {"model": f"openai/{model}", "api_base": f"{gateway}/v1", "api_key": "unused"}


def test_a_whole_answer(gateway: str) -> None:
    answer = litellm.completion(**settings(gateway), messages=MESSAGES, max_tokens=8)

    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_a_stream(gateway: str) -> None:
    stream = litellm.completion(
        **settings(gateway, "gpt-x"),
        messages=MESSAGES,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


def test_embeddings(gateway: str) -> None:
    answer = litellm.embedding(**settings(gateway), input=["hello"], encoding_format="float")

    assert len(answer.data[0]["embedding"]) == 64


def test_an_unknown_model_is_its_own_exception(gateway: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**settings(gateway, "nope"), messages=MESSAGES, num_retries=0)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asynchronously(gateway: str) -> None:
    answer = await litellm.acompletion(**settings(gateway), messages=MESSAGES, max_tokens=8)

    assert answer.choices[0].message.content
