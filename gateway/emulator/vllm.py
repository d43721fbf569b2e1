"""VllmDialect: what vLLM 0.32 says on the wire (pure). Shapes follow recorded answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import orjson

from gateway.emulator import vllm_pooling, vllm_responses
from gateway.emulator.asks import Ask, Progress, Refusal, Reply
from gateway.emulator.fields import refusal
from gateway.emulator.metrics import EngineCounters, EngineStatus, exposition
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import answer_text
from gateway.emulator.vllm_requests import (
    read_chat,
    read_completion,
    read_detokenize,
    read_tokenize,
)

VERSION = "0.32.0"
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Only these need the API key: /health, /metrics, /tokenize ... are open, as in vLLM."""

Headers = Mapping[bytes, bytes]
DONE = b"data: [DONE]\n\n"


class VllmDialect:
    """Reads requests and writes answers for one engine."""

    keep_alive = None
    reports_load = True
    aborts_at_shutdown = True

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self.generates: Mapping[str, Callable[..., Ask]] = {
            "/v1/chat/completions": partial(read_chat, options=options),
            "/v1/completions": partial(read_completion, options=options),
            vllm_responses.PATH: partial(vllm_responses.read_response, options=options),
        }
        """Paths that generate, and what reads their requests."""
        self._kept = vllm_responses.KeptResponses()

    def counters(self) -> EngineCounters:
        """Return fresh counters."""
        return EngineCounters()

    # -- requests

    def authorize(self, path: str, headers: Headers) -> None:
        """Refuse a request without the API key where vLLM wants one."""
        key = self._options.api_key
        if key is None or not path.startswith(_GUARDED):
            return
        if headers.get(b"authorization") != b"Bearer " + key.encode():
            raise Refusal(Reply(401, b'{"error":"Unauthorized"}'))

    def plain(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        status: Callable[[], EngineStatus],
    ) -> Reply:
        """Answer whatever generates nothing."""
        routes: dict[str, tuple[str, Callable[[], Reply]]] = {
            "/health": ("GET", lambda: Reply(200, b"", "")),
            "/ping": ("GET", lambda: Reply(200, b"", "")),
            "/version": ("GET", lambda: _json({"version": VERSION})),
            "/metrics": ("GET", lambda: _metrics(status())),
            "/load": ("GET", lambda: _json({"server_load": status().http_requests})),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", lambda: self._tokenize(headers, body)),
            "/detokenize": ("POST", lambda: _detokenize(headers, body)),
            "/openapi.json": ("GET", lambda: self._openapi(routes)),
        }
        pools = vllm_pooling.ANSWERS.get(path)
        if pools is not None:
            routes[path] = ("POST", lambda: pools(headers, body, self._options))
        kept = self._kept.reply(method, path)
        if kept is not None:
            return kept
        route = routes.get(path)
        if route is None and path not in self.generates:
            return Reply(404, b'{"detail":"Not Found"}')
        if route is None or method != route[0]:
            return Reply(405, b'{"detail":"Method Not Allowed"}')
        return route[1]()

    def _models(self) -> Reply:
        options = self._options
        entries: list[dict[str, object]] = [
            {
                "id": model,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": options.models[0],
                "parent": None,
                "max_model_len": options.context_tokens,
                "permission": [],
            }
            for model in options.models
        ]
        return _json({"object": "list", "data": entries})

    def _openapi(self, routes: Iterable[str]) -> Reply:
        """Return which paths there are, all that anybody reads of vLLM's own document."""
        kept = (
            vllm_responses.PATH + "/{response_id}",
            vllm_responses.PATH + "/{response_id}/cancel",
        )
        paths = sorted({*routes, *self.generates, *vllm_pooling.ANSWERS, *kept})
        info = {"title": "FastAPI", "version": VERSION}
        return _json({"openapi": "3.1.0", "info": info, "paths": {path: {} for path in paths}})

    def _tokenize(self, headers: Headers, body: bytes) -> Reply:
        count = read_tokenize(headers, body).tokens
        return _json(
            {
                "count": count,
                "max_model_len": self._options.context_tokens,
                "tokens": list(range(count)),
                "token_strs": None,
            }
        )

    # -- errors

    def busy(self) -> Reply:
        """The queue is full."""
        return refusal(
            503,
            "The engine is currently busy and cannot accept new requests. Please try again later "
            "or on a different instance.",
            "Service Unavailable",
        ).reply

    def dead(self) -> Reply:
        """The engine's core has died."""
        return refusal(
            500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "InternalServerError",
        ).reply

    def failed(self) -> Reply:
        """Something went wrong with this request alone."""
        return refusal(500, "Internal server error", "InternalServerError").reply

    def stopping(self) -> Reply:
        """The engine is shutting down."""
        return refusal(
            500, "cannot schedule new futures after shutdown", "InternalServerError"
        ).reply

    def in_stream(self, reply: Reply, ask: Ask) -> bytes:  # noqa: ARG002 - all alike here
        """An error on a stream: an event in a 200, and `[DONE]` nevertheless."""
        return b"data: " + reply.body + b"\n\n" + DONE

    # -- answers

    def stream_headers(self, ask: Ask) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG002
        """Return what leads a stream."""
        return ((b"content-type", b"text/event-stream; charset=utf-8"),)

    def answer(self, ask: Ask, progress: Sequence[Progress]) -> Reply:
        """Return the whole answer."""
        if ask.is_response:
            return _json(self._kept.keep(vllm_responses.response_of(ask, progress)))
        write = _chat_choice if ask.is_chat else _completion_choice
        answer: dict[str, object] = {
            "id": ask.id,
            "object": "chat.completion" if ask.is_chat else "text_completion",
            "created": ask.created,
            "model": ask.model,
            "choices": [write(ask, number, done) for number, done in enumerate(progress)],
            "service_tier": None,
            "system_fingerprint": f"vllm-{VERSION}-emulated",
            "usage": _usage(ask, progress),
        }
        if ask.is_chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        answer |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return _json(answer)

    def frames(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return the events for what has come since the last time; now it is told."""
        if ask.is_response:
            return vllm_responses.response_frames(ask, progress[0])
        frames: list[str] = []
        for number, now in enumerate(progress):
            if now.is_closed or (now.tokens == now.told and now.finish_reason is None):
                continue
            if ask.is_chat and not now.told:
                frames.append(_frame(ask, number, '"delta":{"role":"assistant","content":""}'))
                if ask.tool is not None:
                    frames.append(_frame(ask, number, _tool_delta(ask, number)))
            text = orjson.dumps(_text(ask, number, now, now.told)).decode()
            now.told = now.tokens
            now.is_closed = now.finish_reason is not None
            usage = _usage(ask, progress) if ask.continuous_usage else None
            frames.append(_frame(ask, number, _delta(ask, text), _finish(ask, now), usage))
        return "".join(frames).encode()

    def ending(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return the events after the last token."""
        if ask.is_response:
            response = self._kept.keep(vllm_responses.response_of(ask, progress))
            return vllm_responses.response_ending(ask, progress[0], response)
        if not ask.include_usage:
            return DONE
        usage = orjson.dumps(_usage(ask, progress)).decode()
        return f'{_stream_head(ask)}],"usage":{usage}}}\n\n'.encode() + DONE


def _json(content: object) -> Reply:
    return Reply(200, orjson.dumps(content))


def _metrics(status: EngineStatus) -> Reply:
    page = exposition(status).encode()
    return Reply(200, page, "text/plain; version=1.0.0; charset=utf-8")


def _detokenize(headers: Headers, body: bytes) -> Reply:
    return _json({"prompt": answer_text(0, 0, read_detokenize(headers, body))})


def _usage(ask: Ask, progress: Sequence[Progress]) -> dict[str, object]:
    completion_tokens = sum(now.tokens for now in progress)
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": progress[0].cached_tokens,
            "created_cache_tokens": 0 if ask.is_chat else None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


def _text(ask: Ask, number: int, now: Progress, start: int) -> str:
    """What a choice says from token `start` on, with the frame of its JSON object, if any."""
    text = answer_text(ask.choices[number].text_offset, start, now.tokens)
    if not start:
        text = ask.before + text
    if now.finish_reason == "stop":
        text += ask.after
    return text


def _finish(ask: Ask, now: Progress) -> str | None:
    """vLLM says `tool_calls` for `required`, and `stop` where the client named the function."""
    if now.finish_reason == "stop" and ask.is_tool_required:
        return "tool_calls"
    return now.finish_reason


def _tool_call(ask: Ask, number: int, arguments: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-tool-{ask.id[9:]}-{number}",
        "type": "function",
        "function": {"name": ask.tool, "arguments": arguments},
    }


def _chat_choice(ask: Ask, number: int, now: Progress) -> dict[str, object]:
    text = _text(ask, number, now, 0)
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if ask.tool is None else "",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    if ask.tool is not None:
        message["tool_calls"] = [_tool_call(ask, number, text)]
    return {
        "index": number,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish(ask, now),
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _completion_choice(ask: Ask, number: int, now: Progress) -> dict[str, object]:
    return {
        "index": number,
        "text": _text(ask, number, now, 0),
        "logprobs": None,
        "finish_reason": now.finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _stream_head(ask: Ask) -> str:
    kind = "chat.completion.chunk" if ask.is_chat else "text_completion"
    head = {"id": ask.id, "object": kind, "created": ask.created, "model": ask.model}
    return f'data: {orjson.dumps(head)[:-1].decode()},"choices":['


def _frame(
    ask: Ask,
    number: int,
    delta: str,
    finish_reason: str | None = None,
    usage: dict[str, object] | None = None,
) -> str:
    finish = "null" if finish_reason is None else f'"{finish_reason}","stop_reason":null'
    tail = "" if usage is None else f',"usage":{orjson.dumps(usage).decode()}'
    return (
        f'{_stream_head(ask)}{{"index":{number},{delta},"logprobs":null,'
        f'"finish_reason":{finish},"token_ids":null}}]{tail}}}\n\n'
    )


def _delta(ask: Ask, text: str) -> str:
    if not ask.is_chat:
        return f'"text":{text}'
    if ask.tool is None:
        return f'"delta":{{"content":{text}}}'
    return f'"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":{text}}}}}]}}'


def _tool_delta(ask: Ask, number: int) -> str:
    call = {**_tool_call(ask, number, ""), "index": 0}
    return f'"delta":{{"tool_calls":[{orjson.dumps(call).decode()}]}}'
