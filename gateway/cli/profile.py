"""`hexsage profile URL`: measure a running OpenAI-compatible server, print its `profile:` block."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway import __version__
from gateway.backends.engine_metrics import read_metrics
from gateway.backends.sse import SseDecoder
from gateway.cli import inputs
from gateway.cli.inputs import OK, UsageError
from gateway.cli.profiling import TimedCall, fit, yaml_block
from gateway.runtime.clock import MonotonicClock

CANNOT_MEASURE = 1
LONG_TOKENS = 4000
MIN_LONG_TOKENS = 400
SHORT_TOKENS = 64
REPEATS = 3
OUTPUT_TOKENS = 64
BATCHES = (1, 4, 16)
LONG_BATCHES = (1, 4)
TIMEOUT_S = 120.0
WORDS = [
    "river",
    "table",
    "seven",
    "garden",
    "window",
    "market",
    "silver",
    "morning",
    "paper",
    "bridge",
    "winter",
    "doctor",
    "letter",
    "island",
    "engine",
    "summer",
    "forest",
    "yellow",
    "corner",
    "planet",
]
"""About one token each in most vocabularies; the server's own count is what is used."""

DESCRIPTION = """\
Measure a running OpenAI-compatible server with some fifty short streamed calls, and print the
`profile:` block for it in backends.yaml. Takes a minute or two on a GPU. Nothing else should use
the server meanwhile; prompts are random words, so that no prefix cache helps."""

EPILOG = """\
examples:
  hexsage profile http://10.0.0.7:8000 --model llama-70b
  hexsage profile https://gpu.example --model m1 --api-key-env GPU_KEY --long-tokens 2000

exit codes: 0 done, 1 the server cannot be measured, 2 the arguments make no sense"""


class CannotMeasure(Exception):
    """The server does not answer as it would have to; a sentence says how."""


class Meter:
    """Times calls to one server."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, now: Callable[[], float], seed: int = 0
    ) -> None:
        self._client = client
        self._model = model
        self._now = now
        self._rng = Random(seed)
        self._extras: dict[str, object] = {"ignore_eos": True}
        """Makes answers as long as asked for; given up where the server refuses it."""

    async def reading(self, long_tokens: int) -> list[TimedCall]:
        """Return lone calls with prompts of several lengths and next to no answer."""
        await self._call(1, SHORT_TOKENS, 2)  # warms the server up
        lengths = [SHORT_TOKENS, long_tokens // 4, long_tokens]
        return [await self._call(1, tokens, 2) for tokens in lengths for _ in range(REPEATS)]

    async def writing(self, long_tokens: int) -> list[TimedCall]:
        """Return calls with longer answers, at several batches and contexts."""
        plan = [(batch, SHORT_TOKENS) for batch in BATCHES]
        plan += [(batch, long_tokens) for batch in LONG_BATCHES]
        calls: list[TimedCall] = []
        for batch, tokens in plan:
            for _ in range(REPEATS if batch == 1 else 1):
                calls += await self._side_by_side(batch, tokens)
        return calls

    async def kv_tokens(self) -> int | None:
        """Return the KV capacity if /metrics tells."""
        try:
            answer = await self._client.get("/metrics")
        except httpx.HTTPError:
            return None
        return read_metrics(answer.text).kv_tokens if answer.status_code == httpx.codes.OK else None

    async def _side_by_side(self, batch: int, prompt_tokens: int) -> list[TimedCall]:
        calls = await asyncio.gather(
            *[self._call(batch, prompt_tokens, OUTPUT_TOKENS) for _ in range(batch)]
        )
        # Those that came first waited for the others' prompts while they wrote: the last to begin
        # wrote in peace.
        return [max(calls, key=lambda call: call.first_token_s)]

    async def _call(self, batch: int, prompt_tokens: int, output_tokens: int) -> TimedCall:
        words = [str(self._rng.random()), *self._rng.choices(WORDS, k=prompt_tokens)]
        body: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extras,
        }
        began_at = self._now()
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code == httpx.codes.BAD_REQUEST and self._extras:
                self._extras = {}
            elif answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")
                raise CannotMeasure(f"it answers {answer.status_code}: {text[:300]}")
            else:
                return await self._read(answer, batch, began_at)
        return await self._call(batch, prompt_tokens, output_tokens)

    async def _read(self, answer: httpx.Response, batch: int, began_at: float) -> TimedCall:
        decoder = SseDecoder()
        first_at: float | None = None
        last_at = began_at
        usage: dict[str, Any] | None = None
        async for piece in answer.aiter_bytes():
            at = self._now()
            for event in decoder.feed(piece):
                if event.data is None or event.data == b"[DONE]":
                    continue
                chunk = json.loads(event.data)
                if "error" in chunk:
                    raise CannotMeasure(f"it answers with an error: {chunk['error']}")
                usage = chunk.get("usage") or usage
                if _has_text(chunk):
                    first_at = at if first_at is None else first_at
                    last_at = at
        if usage is None or first_at is None:
            raise CannotMeasure(
                "its streams tell no token counts (stream_options.include_usage), or hold no text"
            )
        output_tokens = int(usage["completion_tokens"])
        if output_tokens < 2:
            raise CannotMeasure("its answers end after one token")
        return TimedCall(
            batch=batch,
            prompt_tokens=int(usage["prompt_tokens"]),
            output_tokens=output_tokens,
            first_token_s=first_at - began_at,
            total_s=last_at - began_at,
        )


def _has_text(chunk: dict[str, Any]) -> bool:
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or []]
    return any(delta.get("content") or delta.get("reasoning_content") for delta in deltas)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hexsage profile`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("url", help="where the server is, such as http://10.0.0.7:8000")
    add("--model", required=True, metavar="NAME", help="the model as the server calls it")
    add("--api-key-env", metavar="VARIABLE", help="the environment variable with the API key")
    add(
        "--long-tokens",
        type=inputs.positive_int,
        default=LONG_TOKENS,
        metavar="N",
        help="length of the long prompts, about; must fit the server (default: %(default)s)",
    )
    add("--kv-tokens", type=inputs.positive_int, metavar="N", help="if /metrics does not tell")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    try:
        headers = _headers(arguments)
    except UsageError as error:
        return inputs.complain(error)
    try:
        block = asyncio.run(_measure(arguments, headers))
    except (CannotMeasure, httpx.HTTPError, json.JSONDecodeError) as error:
        reason = str(error) or type(error).__name__
        sys.stderr.write(f"{arguments.url} cannot be measured: {reason}\n")
        return CANNOT_MEASURE
    sys.stdout.write(block)
    return OK


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    parts = urlsplit(arguments.url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"'{arguments.url}' is no URL: write http://HOST:PORT")
    if arguments.long_tokens < MIN_LONG_TOKENS:
        raise UsageError(f"--long-tokens must be at least {MIN_LONG_TOKENS}")
    variable = arguments.api_key_env
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"the environment variable {variable} is not set")
    return {"authorization": f"Bearer {key}"}


async def _measure(arguments: argparse.Namespace, headers: dict[str, str]) -> str:
    clock = MonotonicClock()
    began_at = clock.now()
    base_url = arguments.url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=TIMEOUT_S, trust_env=False
    ) as client:
        meter = Meter(client, arguments.model, clock.now, seed=int(began_at * 1000))
        reading = await meter.reading(arguments.long_tokens)
        writing = await meter.writing(arguments.long_tokens)
        kv_tokens = arguments.kv_tokens or await meter.kv_tokens()
    title = (
        f"# {base_url}, model {arguments.model}: measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC "
        f"in {clock.now() - began_at:.0f} s by HexSage {__version__}\n"
    )
    return title + yaml_block(fit(reading, writing), kv_tokens)


if __name__ == "__main__":
    sys.exit(inputs.alone(add_arguments, run))
