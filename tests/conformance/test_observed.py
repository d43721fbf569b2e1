"""With `observe_progress`, answers put together from chunks are what the engine would have said."""

import re
from collections.abc import Sequence

import pytest

from gateway.core.events import Event, FirstToken, Progressed
from tests.api.harness import Running, a_gateway
from tests.backends.fake_backend import MODEL
from tests.conformance.engines import ENGINES, PATIENT
from tests.conformance.test_dialects import ALIAS, CHAT, COMPLETIONS, TOOLS, Json, asking

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("dialect", ENGINES)]

CALLS: dict[str, tuple[str, Json]] = {
    "chat": (CHAT, {}),
    "chat, other scripts": (CHAT, {"text": "漢字 🙂 é"}),
    "chat, cut": (CHAT, {"max_tokens": 3}),
    "chat under an alias": (CHAT, {"model": ALIAS}),
    "chat, not streamed in so many words": (CHAT, {"stream": False, "temperature": 0}),
    "completion": (COMPLETIONS, {}),
    "completion, cut": (COMPLETIONS, {"max_tokens": 3}),
}
OF_ITS_OWN = re.compile(rb'"(?:id|created|cached_tokens|timings)": ?(?:"[^"]*"|[0-9]+|\{[^}]*\})')
"""What differs between two answers to one call. Of timings the fake llama.cpp tells no truth."""


class Ear:
    """Hears what the scheduler is told."""

    def __init__(self, gw: Running) -> None:
        self.first_tokens = self.edges = 0
        gw.gateway.driver._observers = (*gw.gateway.driver._observers, self.observe)

    def observe(self, _now: float, event: Event, _commands: Sequence[object]) -> None:
        self.first_tokens += isinstance(event, FirstToken)
        self.edges += isinstance(event, Progressed)


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_is_byte_for_byte_what_it_would_have_been(dialect: str, name: str) -> None:
    path, more = CALLS[name]
    async with ENGINES[dialect]() as engine:
        models = {ALIAS: {"target": MODEL}}
        async with a_gateway(
            *(engine,),
            backends=[{"kind": engine.kind}],
            models=models,
            health=PATIENT,
            observe_progress=True,
        ) as gw:
            ear = Ear(gw)
            whole = await gw.post(asking(path, **more), path)
            heard = ear.first_tokens
            assembled = await gw.post(asking(path, **more), path)

            assert (heard, ear.first_tokens) == (0, 1)
            assert (whole.status, assembled.status) == (200, 200)
            assert OF_ITS_OWN.sub(b"", assembled.body) == OF_ITS_OWN.sub(b"", whole.body)
            assert assembled.json["id"]
            assert assembled.headers["content-type"] == whole.headers["content-type"]
            assert "x-accel-buffering" not in assembled.headers
            assert gw.settled() == {("completed", ""): 2}
            answer: Json = whole.json
            told = answer["usage"]
            assert gw.tokens() == (2 * told["prompt_tokens"], 2 * told["completion_tokens"])


async def test_where_chunks_may_say_less_the_engine_is_asked_for_the_whole(dialect: str) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 2}
    tools = {"tools": TOOLS, "tool_choice": "required"}
    async with (
        ENGINES[dialect]() as engine,
        a_gateway(
            engine, backends=[{"kind": engine.kind}], health=PATIENT, observe_progress=True
        ) as gw,
    ):
        ear = Ear(gw)
        for more in (tools, logprobs):
            first, second = [await gw.post(asking(CHAT, **more)) for _ in range(2)]

            assert (first.status, second.status) == (200, 200)
            assert OF_ITS_OWN.sub(b"", second.body) == OF_ITS_OWN.sub(b"", first.body)
        # Of vLLM it is known that its chunks hold logprobs.
        assert ear.first_tokens == (1 if dialect == "vllm" else 0)
