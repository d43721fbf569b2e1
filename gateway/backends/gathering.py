"""GatheringClient: answers that clients want whole, asked of the engine as streams.

So the scheduler hears of first tokens and progress. The price is a chunk for each token, and that
answers are put together here (gateway/backends/assembly.py).
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import orjson

from gateway.backends.answers import WholeAnswer
from gateway.backends.assembly import Assembly, Json, Mould
from gateway.backends.base import (
    Answer,
    BackendError,
    BadAnswer,
    Call,
    Header,
    Listener,
    Usage,
)
from gateway.backends.http_client import HttpClient
from gateway.backends.lenient_json import dumps, loads
from gateway.backends.sse import SseDecoder

MOULD_S = 600.0
"""How long an engine's form is trusted: it may be replaced by another version at any time."""
_OF_STREAMS = (b"content-type", b"cache-control", b"x-accel-buffering")
_LOAD_REPORT = "endpoint-load-metrics-format"
"""Asks vLLM for a header that streams do not have."""
_STREAMED = b'{"stream":true,"stream_options":{"include_usage":true},'


class GatheringClient(HttpClient):
    """A client whose calls that have a form are streamed upstream, once the form is known.

    Until then, and every ten minutes, such a call is asked for whole, and its answer is the mould.
    """

    _known: "dict[str, _Known] | None" = None

    @property
    def _moulds(self) -> "dict[str, _Known]":
        """By form: two paths, with logprobs or without."""
        if self._known is None:
            self._known = {}
        return self._known

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> Answer:
        """Send the call; return once the answer has begun, or raise BackendError.

        An error after the first token is not retryable: the answer had begun.
        """
        if not (call.form and self._may_gather(call)):
            return await super().open(
                call, listener, engine_priority=engine_priority, attempt=attempt
            )
        known = self._moulds.get(call.form)
        is_fresh = known is not None and known.until > asyncio.get_running_loop().time()
        if known is None or not is_fresh or not known.suffices:
            answer = await super().open(
                call, listener, engine_priority=engine_priority, attempt=attempt
            )
            if not is_fresh:
                self._learn(call.form, answer)
            return answer
        witness = _Witness(listener)
        try:
            answer = await super().open(
                streamed(call), witness, engine_priority=engine_priority, attempt=attempt
            )
            async with aclosing(answer):
                gathered = await self._gather(answer, known)
        except BackendError as error:
            error.retryable = error.retryable and not witness.has_begun
            raise
        if witness.usage is not None:
            listener.finished(witness.usage)
        return gathered

    def _may_gather(self, call: Call) -> bool:
        if not self._dialect.tells_all(call.form):
            return False
        return all(name != _LOAD_REPORT for name, _ in call.headers)

    def _learn(self, form: str, answer: Answer) -> None:
        said = loads(answer.whole) if answer.whole is not None else None
        if not isinstance(said, dict):
            return
        try:
            mould, write = Mould(said), writer_of(said, answer.whole)
        except ValueError:
            return
        self._moulds[form] = _Known(
            mould=mould,
            write=write,
            headers=tuple(header for header in answer.headers if header[0] == b"content-type"),
            until=asyncio.get_running_loop().time() + MOULD_S,
        )

    async def _gather(self, answer: Answer, known: "_Known") -> Answer:
        if answer.whole is not None:  # it does not stream
            return answer
        limit_bytes = self._bounds.answer_bytes
        decoder, assembly, size = SseDecoder(limit_bytes), Assembly(), 0
        while events := await answer.read():
            size += len(events)
            if size > limit_bytes:
                raise BadAnswer(f"the engine's answer is longer than {limit_bytes} bytes")
            for event in decoder.feed(events):
                if event.data and event.data[:1] == b"{":
                    assembly.add(_chunk_of(event.data))
        try:
            whole = known.write(assembly.whole(known.mould))
        except ValueError as error:
            known.suffices = False
            raise BadAnswer(f"the engine's stream is no answer: {error}") from None
        known.suffices = not assembly.lacks(known.mould)
        headers = [header for header in answer.headers if header[0] not in _OF_STREAMS]
        return WholeAnswer(
            answer.status,
            (*headers, *known.headers),
            whole,
            answer.usage,
            answer.finish_reason,
            None,
        )


@dataclass
class _Known:
    """What is known of an engine's answers in one form."""

    mould: Mould
    write: Callable[[Json], bytes]
    headers: tuple[Header, ...]
    until: float
    suffices: bool = True
    """Streams have said all that whole answers do."""


@dataclass
class _Witness:
    """Hears what a stream says of itself, and keeps its end back: the answer is not made yet."""

    listener: Listener
    has_begun: bool = False
    usage: Usage | None = None

    def first_token(self) -> None:
        self.has_begun = True
        self.listener.first_token()

    def progressed(self, output_tokens: int) -> None:
        self.listener.progressed(output_tokens)

    def finished(self, usage: Usage) -> None:
        self.usage = usage


def _chunk_of(data: bytes) -> Json:
    try:
        chunk = loads(data)
    except ValueError:
        raise BadAnswer("the engine's stream holds a chunk that is not JSON") from None
    assert isinstance(chunk, dict)  # it begins with a brace
    return chunk


def streamed(call: Call) -> Call:
    """Return the call as it asks for a stream with usage."""
    body = call.body
    if b'"stream' in body:
        said = orjson.loads(body)
        body = orjson.dumps({**said, "stream": True, "stream_options": {"include_usage": True}})
    else:
        # Put it before the client's own members; no other byte is touched.
        body = body.replace(b"{", _STREAMED, 1)
    return replace(call, body=body, stream=True, form="")


def writer_of(said: Json, text: bytes | None) -> Callable[[Json], bytes]:
    """Return what writes JSON as an engine does: spaces, escapes, numbers.

    It raises ValueError, as this does, where JSON is nested too deeply.
    """
    return next((write for write in _WRITERS if write(said) == text), _WRITERS[0])


def _python_json(*, separators: tuple[str, str], ensure_ascii: bool) -> Callable[[Json], bytes]:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, separators=separators)

    def write(content: Json) -> bytes:
        try:
            return encoder.encode(content).encode(errors="surrogatepass")
        except RecursionError:
            raise ValueError("nested too deeply") from None

    return write


_WRITERS = (
    _python_json(separators=(",", ":"), ensure_ascii=False),  # vLLM, SGLang, llama.cpp
    dumps,  # what was mended for TGI
    _python_json(separators=(", ", ": "), ensure_ascii=True),
)
