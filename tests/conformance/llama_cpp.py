"""What looks like llama.cpp's server, by its recorded answers, as scripts for a scripted engine."""

import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

from tests.backends.fake_backend import DONE, Exchange

Json = dict[str, Any]
CONTEXT_TOKENS = 2000
TOKEN_S = 0.0005
WORDS = ("select ", "count ", "from ", "table ", "where ")
NATURAL_TOKENS = 40


async def llama_cpp_loading(exchange: Exchange) -> None:
    """Refuse as llama.cpp does while it loads its model."""
    await _refuse(exchange, 503, "Service Unavailable", "Loading model", "unavailable_error")


async def llama_cpp(exchange: Exchange) -> None:
    """Answer as llama.cpp does; `vllm_xargs.out_len` says how long."""
    asked: Json = exchange.seen.json
    prompt_tokens = len(json.dumps(asked.get("messages") or asked.get("prompt"))) // 4
    if prompt_tokens > CONTEXT_TOKENS:
        message = "the request exceeds the available context size"
        await _refuse(exchange, 400, "Bad Request", message, "exceed_context_size_error")
        return
    if (asked.get("temperature") or 0) < 0:
        message = "temperature must not be negative"
        await _refuse(exchange, 400, "Bad Request", message, "invalid_request_error")
        return
    answer = _Answer(asked, prompt_tokens, is_chat=exchange.seen.target.startswith("/v1/chat/"))
    if not asked.get("stream"):
        await exchange.pause(TOKEN_S * len(answer.words))
        await exchange.answer(json.dumps(answer.whole()).encode())
        return
    await exchange.begin_stream(headers=("access-control-allow-origin: ",))
    for frame in answer.frames():
        await exchange.chunk(b"data: " + json.dumps(frame).encode() + b"\n\n")
        await exchange.pause(TOKEN_S)
    await exchange.chunk(DONE)
    await exchange.end_stream()


async def _refuse(exchange: Exchange, status: int, phrase: str, message: str, kind: str) -> None:
    body = json.dumps({"error": {"code": status, "message": message, "type": kind}}).encode()
    await exchange.answer(body, status=f"{status} {phrase}", headers=("connection: close",))
    exchange.close()


class _Answer:
    """One answer, in the forms that it can be asked for."""

    def __init__(self, asked: Json, prompt_tokens: int, *, is_chat: bool) -> None:
        self._asked = asked
        self._is_chat = is_chat
        limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or CONTEXT_TOKENS
        length = (asked.get("vllm_xargs") or {}).get("out_len", NATURAL_TOKENS)
        self.words = list(islice(cycle(WORDS), min(length, limit)))
        self._reason = "length" if length > limit else "stop"
        self._tool = None
        if asked.get("tools") and asked.get("tool_choice") == "required":
            self._tool = asked["tools"][0]["function"]["name"]
            self.words = ['{"text": "', *self.words, '"}']
            self._reason = "tool_calls"
        tokens = len(self.words)
        self._usage = {
            "completion_tokens": tokens,
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + tokens,
        }

    def whole(self) -> Json:
        text = "".join(self.words)
        choice: Json = {"index": 0, "finish_reason": self._reason}
        if not self._is_chat:
            choice |= {"text": text, "logprobs": None}
        elif self._tool is None:
            choice |= {"message": {"role": "assistant", "content": text}}
        else:
            call = {"type": "function", "id": "aB3", "function": self._function(text, named=True)}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice |= {"message": message}
        timings = {"prompt_n": 1, "predicted_n": len(self.words)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage} | {
            "timings": timings
        }

    def frames(self) -> Iterator[Json]:
        if self._is_chat:
            yield self._frame({"delta": {"role": "assistant", "content": None}})
        for number, word in enumerate(self.words):
            yield self._frame(self._piece(word, is_first=number == 0))
        last: Json = {"delta": {}} if self._is_chat else {"text": ""}
        yield self._frame(last, self._reason)
        if (self._asked.get("stream_options") or {}).get("include_usage"):
            head = self._head("chat.completion.chunk")
            yield {**head, "choices": [], "usage": self._usage, "timings": {"cache_n": 0}}

    def _head(self, kind: str) -> Json:
        return {
            "id": "chatcmpl-8Yx",
            "object": kind if self._is_chat else "text_completion",
            "created": 7,
            "model": self._asked.get("model"),
            "system_fingerprint": "b1-fake",
        }

    def _frame(self, choice: Json, reason: str | None = None) -> Json:
        choices = [{"index": 0, "finish_reason": reason, **choice}]
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _piece(self, word: str, *, is_first: bool) -> Json:
        if not self._is_chat:
            return {"text": word}
        if self._tool is None:
            return {"delta": {"content": word}}
        call: Json = {"index": 0, "function": self._function(word, named=is_first)}
        if is_first:
            call |= {"id": "aB3", "type": "function"}
        return {"delta": {"tool_calls": [call]}}

    def _function(self, arguments: str, *, named: bool) -> Json:
        function: Json = {"name": self._tool} if named else {}
        return {**function, "arguments": arguments}
