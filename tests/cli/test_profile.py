"""`hexsage profile` against servers that are not there, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from gateway.cli import profile
from gateway.cli.profile import CannotMeasure, Meter
from gateway.cli.profiling import Measured, fit
from gateway.core.profiles import built_in
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall
from tests.cli.commands import command
from tests.virtual_time import run_in_virtual_time

GPU = built_in("A6000")


class Server(httpx.AsyncBaseTransport):
    """Answers like vLLM, as fast as a modelled A6000. A prompt's tokens are its words."""

    def __init__(self, *, knows_ignore_eos: bool = True, tells_usage: bool = True) -> None:
        self.knows_ignore_eos = knows_ignore_eos
        self.tells_usage = tells_usage
        self.calls = 0
        self._engine = EngineModel(GPU)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            said = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
            return httpx.Response(200, text=said)
        body = json.loads(await request.aread())
        if body["model"] != "m1":
            return httpx.Response(404, json={"error": {"message": "no such model"}})
        if "ignore_eos" in body and not self.knows_ignore_eos:
            return httpx.Response(400, json={"error": {"message": "unknown field"}})
        words = body["messages"][0]["content"].split()
        return httpx.Response(200, stream=_Stream(self._answer(len(words), body["max_tokens"])))

    async def _answer(self, prompt_tokens: int, output_tokens: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        self.calls += 1
        id = str(self.calls)
        self._engine.submit(EngineCall(id, prompt_tokens, output_tokens), loop.time())
        yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        said = 0
        while said < output_tokens:
            at = self._engine.next_step_at(loop.time())
            await asyncio.sleep(0 if at is None else at - loop.time())
            done = self._done(id, output_tokens, loop.time())
            if done > said:
                said = done
                yield _event({"choices": [{"delta": {"content": "x"}}]})
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
        if self.tells_usage:
            yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _done(self, id: str, output_tokens: int, now: float) -> int:
        try:
            return self._engine.output_tokens(id, now)
        except KeyError:
            return output_tokens


class _Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def measured(
    server: httpx.AsyncBaseTransport, use: Callable[[Meter], object], model: str = "m1"
) -> object:
    async def measure() -> object:
        loop = asyncio.get_running_loop()
        async with httpx.AsyncClient(transport=server, base_url="http://engine") as client:
            result = use(Meter(client, model, loop.time))
            assert asyncio.iscoroutine(result)
            return await result

    return run_in_virtual_time(measure())


async def both(meter: Meter) -> Measured:
    return fit(await meter.reading(4000), await meter.writing(4000))


@pytest.mark.parametrize("knows_ignore_eos", [True, False])
def test_a_servers_profile_is_found(knows_ignore_eos: bool) -> None:
    found = measured(Server(knows_ignore_eos=knows_ignore_eos), both)

    assert isinstance(found, Measured)
    assert found.prefill_s_per_token == pytest.approx(GPU.prefill_s_per_token, rel=0.02)
    assert found.decode_base_s == pytest.approx(GPU.decode_base_s, rel=0.05)
    assert found.kv_read_s_per_token == pytest.approx(GPU.kv_read_s_per_token, rel=0.15)


def test_it_takes_about_fifty_calls() -> None:
    server = Server()

    measured(server, both)

    assert server.calls < 60


def test_the_metrics_tell_the_kv_cache() -> None:
    assert measured(Server(), lambda meter: meter.kv_tokens()) == 1600


def test_a_server_without_token_counts_cannot_be_measured() -> None:
    with pytest.raises(CannotMeasure, match="token counts"):
        measured(Server(tells_usage=False), both)


def test_a_refusal_is_told() -> None:
    with pytest.raises(CannotMeasure, match=r"404: .*no such model"):
        measured(Server(), both, model="m2")


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        pytest.param(("engine", "--model", "m"), 2, "is no URL", id="url"),
        pytest.param(("http://127.0.0.1:9", "--model", "m"), 1, "cannot be measured", id="nobody"),
        pytest.param(
            ("http://h", "--model", "m", "--api-key-env", "NO_SUCH_KEY"), 2, "NO_SUCH_KEY", id="key"
        ),
        pytest.param(
            ("http://h", "--model", "m", "--long-tokens", "9"), 2, "at least 400", id="short"
        ),
    ],
)
def test_what_went_wrong_is_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, complaint: str
) -> None:
    assert command(profile, *words) == code
    assert complaint in capsys.readouterr().err
