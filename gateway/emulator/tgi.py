"""TgiDialect: what TGI 3.3.6-dev0 says on the wire (pure), by its source, not by a running one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import orjson

from gateway.emulator.asks import Ask, Progress, Refusal, Reply
from gateway.emulator.metrics import EngineCounters, EngineStatus
from gateway.emulator.options import TGI_CONCURRENT_REQUESTS, EngineOptions
from gateway.emulator.prompts import BYTES_PER_TOKEN
from gateway.emulator.tgi_answer_size import MAX_STOP_SEQUENCES
from gateway.emulator.tgi_answers import (
    FINGERPRINT,
    VERSION,
    chunk,
    completion_choice,
    compute_headers,
    delta,
    event,
    message_choice,
    native_answer,
    native_event,
    native_reason,
    text_of,
    timing_headers,
    usage,
)
from gateway.emulator.tgi_fields import error, mistyped, read_fields
from gateway.emulator.tgi_metrics import exposition, fresh_counters
from gateway.emulator.tgi_requests import (
    DONE,
    EVENTS,
    MAX_BEST_OF,
    MAX_CLIENT_BATCH_SIZE,
    as_event,
    read_chat,
    read_completion,
    read_generate,
    read_invocation,
)

KEEP_ALIVE_S = 15.0
_MEDIA = "application/json"

Headers = Mapping[bytes, bytes]


class TgiDialect:
    """Reads requests and writes answers for one engine."""

    keep_alive = (b":\n\n", KEEP_ALIVE_S)
    reports_load = False
    aborts_at_shutdown = False

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._invalid = 0
        """Requests that did not pass the validation."""
        readers: Mapping[str, Callable[..., Ask]] = {
            "/": partial(read_generate, is_stream=None),
            "/generate": partial(read_generate, is_stream=False),
            "/generate_stream": partial(read_generate, is_stream=True),
            "/invocations": read_invocation,
            "/v1/chat/completions": read_chat,
            "/v1/completions": read_completion,
        }
        self.generates: Mapping[str, Callable[..., Ask]] = {
            path: partial(self._read, reader) for path, reader in readers.items()
        }

    def counters(self) -> EngineCounters:
        """Return fresh counters."""
        return fresh_counters(self._options.context_tokens)

    # -- requests

    def authorize(self, path: str, headers: Headers) -> None:
        """Refuse a request without the API key where TGI wants one: not for what only informs."""
        key = self._options.api_key
        if key is None or path not in (*self.generates, "/tokenize"):
            return
        given = headers.get(b"authorization", b"").decode("latin-1")
        if given.lower() != f"bearer {key}".lower():
            raise Refusal(Reply(401, b"", ""))

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
            "/": ("GET", lambda: Reply(200, b"", "")),
            "/health": ("GET", lambda: Reply(200, b"", "")),
            "/ping": ("GET", lambda: Reply(200, b"", "")),
            "/info": ("GET", self._info),
            "/metrics": ("GET", lambda: self._metrics(status())),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", lambda: _json(_tokens(_inputs(headers, body)))),
            "/chat_tokenize": ("POST", lambda: _chat_tokenize(headers, body)),
        }
        route = routes.get(path)
        if route is None and path not in self.generates:
            return Reply(404, b"", "")
        if route is None or method != route[0]:
            return Reply(405, b"", "")
        return route[1]()

    def _read(
        self,
        reader: Callable[..., Ask],
        headers: Headers,
        body: bytes,
        fresh_id: str,
        created: int,
    ) -> Ask:
        try:
            return reader(headers, body, self._options, fresh_id, created)
        except Refusal:
            self._invalid += 1
            raise

    def _info(self) -> Reply:
        options = self._options
        return _json(
            {
                "model_id": options.models[0],
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": options.max_calls or TGI_CONCURRENT_REQUESTS,
                "max_best_of": MAX_BEST_OF,
                "max_stop_sequences": MAX_STOP_SEQUENCES,
                "max_input_tokens": options.context_tokens - 1,
                "max_total_tokens": options.context_tokens,
                "validation_workers": 2,
                "max_client_batch_size": MAX_CLIENT_BATCH_SIZE,
                "router": "text-generation-router",
                "version": VERSION,
                "sha": None,
                "docker_label": None,
            }
        )

    def _models(self) -> Reply:
        model = self._options.models[0]
        entry = {"id": model, "object": "model", "created": 0, "owned_by": model}
        return _json({"object": "list", "data": [entry]})

    def _metrics(self, status: EngineStatus) -> Reply:
        return Reply(200, exposition(status, self._invalid).encode(), "text/plain; charset=utf-8")

    # -- errors

    def busy(self) -> Reply:
        """All permits are taken."""
        return error(429, "overloaded", "Model is overloaded")

    def dead(self) -> Reply:
        """The shard has failed, and with it the whole batch."""
        return error(
            424, "generation", "Request failed during generation: Server error: transport error"
        )

    def failed(self) -> Reply:
        """Something went wrong with this request alone."""
        return error(500, "incomplete_generation", "Incomplete generation")

    def stopping(self) -> Reply:
        """The server is shutting down."""
        return error(503, "healthcheck", "unhealthy")

    def in_stream(self, reply: Reply, ask: Ask) -> bytes:
        """An error on a stream: an event in a 200."""
        return as_event(reply, ask.native)

    # -- answers

    def stream_headers(self, ask: Ask) -> Sequence[tuple[bytes, bytes]]:
        """Return what leads a stream."""
        return (
            (b"content-type", EVENTS.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *compute_headers(ask),
        )

    def answer(self, ask: Ask, progress: Sequence[Progress]) -> Reply:
        """Return the whole answer."""
        if ask.native is not None:
            said = native_answer(ask, ask.native, progress[0])
            content: object = [said] if ask.native.in_list else said
        else:
            content = {
                "object": "chat.completion" if ask.is_chat else "text_completion",
                "id": "",
                "created": ask.created,
                "model": ask.model,
                "system_fingerprint": FINGERPRINT,
                "choices": [
                    (message_choice if ask.is_chat else completion_choice)(ask, number, now)
                    for number, now in enumerate(progress)
                ],
                "usage": usage(ask.prompt_tokens, progress),
            }
        return Reply(200, orjson.dumps(content), _MEDIA, timing_headers(ask, progress))

    def frames(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return an event for each token that has come since the last time; now it is told."""
        frames: list[bytes] = []
        for number, now in enumerate(progress):
            while now.told < now.tokens:
                is_last = now.finish_reason is not None and now.told + 1 == now.tokens
                frames.append(self._frame(ask, number, now, is_last=is_last))
                now.told += 1
        return b"".join(frames)

    def ending(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return what ends the stream: nothing, in TGI's own API."""
        if ask.native is not None:
            return b""
        if not (ask.is_chat and ask.include_usage):
            return DONE
        return event(chunk(ask, [], usage(ask.prompt_tokens, progress))) + DONE

    def _frame(self, ask: Ask, number: int, now: Progress, *, is_last: bool) -> bytes:
        text = text_of(ask, number, now, now.told, now.told + 1)
        if ask.native is not None:
            return event(native_event(ask, ask.native, now, text, is_last=is_last))
        if ask.is_chat:
            choice: dict[str, object] = {
                "index": number,
                "delta": delta(ask, text, is_first=now.told == 0),
                "logprobs": None,
                "finish_reason": now.finish_reason if is_last else None,
            }
            return event(chunk(ask, [choice], None))
        choice = {
            "index": number,
            "text": text,
            "logprobs": None,
            "finish_reason": native_reason(now.finish_reason) if is_last else "",
        }
        # Each of several prompts tells its own.
        frame = chunk(ask, [choice], usage(ask.choices[number].prompt_tokens, [now]))
        if not is_last:
            del frame["usage"]
        return event(frame)


def _json(content: object) -> Reply:
    return Reply(200, orjson.dumps(content))


# -- tokenizing


def _inputs(headers: Headers, body: bytes) -> str:
    inputs = read_fields(headers, body).get("inputs")
    if not isinstance(inputs, str):
        raise mistyped("missing field `inputs`")
    return inputs


def _tokens(text: str) -> list[dict[str, object]]:
    return [
        {"id": number, "text": text[start : start + BYTES_PER_TOKEN], "start": start, "stop": end}
        for number, start in enumerate(range(0, len(text), BYTES_PER_TOKEN))
        for end in [min(start + BYTES_PER_TOKEN, len(text))]
    ]


def _chat_tokenize(headers: Headers, body: bytes) -> Reply:
    messages = read_fields(headers, body).get("messages")
    if not isinstance(messages, list):
        raise mistyped("missing field `messages`")
    text = "".join(
        f"<|{message.get('role')}|>{message.get('content')}"
        for message in messages
        if isinstance(message, dict)
    )
    return _json({"tokenize_response": _tokens(text), "templated_text": text})
