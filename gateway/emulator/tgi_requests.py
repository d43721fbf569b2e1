"""Reading requests as TGI 3.3.6-dev0 does (pure), by its source: router/src/{server,validation}.rs.

`vllm_xargs: {"out_len": N}` is understood as by the emulated vLLM: it makes an answer as long as a
trace says. Everything else is TGI's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import orjson

from gateway.emulator.asks import Ask, Native, Refusal, Reply
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import (
    Prompt,
    read_messages,
    read_text,
)
from gateway.emulator.tgi_answer_size import choice_of, room_tokens, stop_sequences
from gateway.emulator.tgi_fields import (
    CHAT,
    COMPLETION,
    PARAMETERS,
    Body,
    check_grammar,
    check_sampling,
    check_types,
    error,
    invalid,
    mistyped,
    one_limit,
    read_fields,
)

MAX_BEST_OF = 2
MAX_CLIENT_BATCH_SIZE = 4
DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream"

Headers = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """In which form a request wants its answer."""

    is_chat: bool = False
    native: Native | None = None
    is_stream: bool = False


def read_chat(
    headers: Headers, body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what a /v1/chat/completions request asks for."""
    return _chat(read_fields(headers, body), options, fresh_id, created)


def read_completion(
    headers: Headers, body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what a /v1/completions request asks for."""
    return _completion(read_fields(headers, body), options, fresh_id, created)


def read_generate(
    headers: Headers,
    body: bytes,
    options: EngineOptions,
    fresh_id: str,
    created: int,
    *,
    is_stream: bool | None,
) -> Ask:
    """Return what a request of TGI's own API asks for; `is_stream` None: its body says."""
    fields = read_fields(headers, body)
    return _generate(fields, options, fresh_id, created, is_stream=is_stream)


def read_invocation(
    headers: Headers, body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what an /invocations request asks for: any of the three forms, told by its fields."""
    fields = read_fields(headers, body)
    if "inputs" in fields:
        return _generate(fields, options, fresh_id, created, is_stream=None)
    if "messages" in fields:
        return _chat(fields, options, fresh_id, created)
    if "prompt" in fields:
        return _completion(fields, options, fresh_id, created)
    raise mistyped("data did not match any variant of untagged enum SagemakerRequest")


def as_event(reply: Reply, native: Native | None) -> bytes:
    """Return an error as a stream tells it: OpenAI's APIs say 422 whatever it is."""
    if native is not None:
        return b"data: " + reply.body + b"\n\n"
    text = orjson.loads(reply.body)["error"]
    event = {"error": {"message": text, "http_status_code": 422}}
    return b"data: " + orjson.dumps(event) + b"\n\n" + DONE


# -- the three forms


def _chat(fields: Body, options: EngineOptions, fresh_id: str, created: int) -> Ask:
    one_limit(fields)
    check_types(fields, CHAT)
    is_json = check_grammar(fields.get("response_format"), "response_format")
    if "messages" not in fields:
        raise mistyped("missing field `messages`")
    tools = fields.get("tools")
    messages = _messages(fields["messages"])
    if tools:
        if fields.get("response_format"):
            raise Refusal(
                error(422, "tool_error", "Tool error: Grammar and tools are mutually exclusive")
            )
        messages.insert(0, ("tools", orjson.dumps(tools).decode()))
    tool = _forced_tool(tools, fields.get("tool_choice", "auto"))
    _greedy(fields)
    shape = _Shape(is_chat=True, is_stream=bool(fields.get("stream")))
    stream_options = fields.get("stream_options")
    ask = _ask(fields, (read_messages(messages),), fields.get("max_tokens"), options, shape, fields)
    return replace(
        ask,
        id=fresh_id,
        created=created,
        model=str(fields.get("model") or "tgi"),
        include_usage=isinstance(stream_options, dict)
        and stream_options.get("include_usage") is True,
        before='{"text": "' if is_json or tool else "",
        after='"}' if is_json or tool else "",
        tool=tool,
    )


def _completion(fields: Body, options: EngineOptions, fresh_id: str, created: int) -> Ask:
    check_types(fields, COMPLETION)
    prompts = _prompts(fields)
    shape = _Shape(is_stream=bool(fields.get("stream")))
    if fields.get("suffix") is not None:
        _refuse(
            invalid("Suffix is not supported and can be achieved by preprocessing the prompt."),
            _Shape(),
        )
    if len(prompts) > MAX_CLIENT_BATCH_SIZE:
        _refuse(
            invalid(
                f"Number of prompts exceeds the maximum allowed batch size of "
                f"{MAX_CLIENT_BATCH_SIZE}"
            ),
            _Shape(),
        )
    _greedy(fields)
    ask = _ask(fields, prompts, fields.get("max_tokens"), options, shape, fields)
    return replace(ask, id=fresh_id, created=created, model=options.models[0], include_usage=True)


def _generate(
    fields: Body, options: EngineOptions, fresh_id: str, created: int, *, is_stream: bool | None
) -> Ask:
    check_types(fields, {"stream": ("a boolean", False)})
    inputs = fields.get("inputs")
    if not isinstance(inputs, str):
        raise mistyped("missing field `inputs`")
    parameters = fields.get("parameters", {})
    if not isinstance(parameters, dict):
        raise mistyped("parameters: invalid type, expected struct GenerateParameters")
    check_types(parameters, PARAMETERS, "parameters.")
    is_json = check_grammar(parameters.get("grammar"), "parameters.grammar")
    shape = _Shape(
        native=Native(
            details=bool(parameters.get("details") or parameters.get("decoder_input_details")),
            text_before=inputs if parameters.get("return_full_text") else "",
            in_list=is_stream is None,
        ),
        is_stream=bool(fields.get("stream")) if is_stream is None else is_stream,
    )
    _check_best_of(parameters, shape)
    prompt = read_text(inputs)
    limit = parameters.get("max_new_tokens")
    ask = _ask(parameters, (prompt,), limit, options, shape, fields)
    return replace(
        ask,
        id=fresh_id,
        created=created,
        model=options.models[0],
        before='{"text": "' if is_json else "",
        after='"}' if is_json else "",
    )


# -- what TGI checks


def _refuse(refused: Refusal, shape: _Shape) -> NoReturn:
    """Refuse: by status, or on a stream as its only event."""
    if shape.is_stream:
        raise Refusal(Reply(200, as_event(refused.reply, shape.native), EVENTS))
    raise refused


def _greedy(fields: Body) -> None:
    """In OpenAI's APIs a temperature of 0 means: do not sample."""
    if fields.get("temperature") == 0:
        del fields["temperature"]


def _check_best_of(parameters: Body, shape: _Shape) -> None:
    best_of = parameters.get("best_of")
    if not isinstance(best_of, int) or best_of == 1:
        return
    if best_of == 0:
        _refuse(invalid("`best_of` must be strictly positive"), shape)
    if shape.is_stream:
        _refuse(invalid("`best_of` != 1 is not supported when streaming tokens"), shape)
    if best_of > MAX_BEST_OF:
        _refuse(
            invalid(
                f"`best_of` must be > 0 and <= {MAX_BEST_OF}. Given: {best_of}",
            ),
            shape,
        )
    if not parameters.get("do_sample"):
        _refuse(invalid("you must use sampling when `best_of` is > 1"), shape)


def _messages(messages: object) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise mistyped("messages[0]: missing field `role`")
        content = message.get("content")
        if isinstance(content, list):
            texts = [str(part.get("text", "")) for part in content if isinstance(part, dict)]
            content = "".join(texts)
        calls = message.get("tool_calls")
        if content is None and not calls:
            raise mistyped("messages: data did not match any variant of untagged enum MessageBody")
        parts.append((message["role"], f"{content or ''}{orjson.dumps(calls).decode()}"))
    if not parts:
        raise Refusal(
            error(422, "template_error", "Template error: a conversation needs a message")
        )
    return parts


def _forced_tool(tools: object, choice: object) -> str | None:
    """Return the function that the answer calls, where the client leaves no choice."""
    if not isinstance(tools, list) or not tools or choice in ("none", "auto", None):
        return None
    try:
        names = [str(tool["function"]["name"]) for tool in tools]
        wanted = names[0] if choice == "required" else str(choice["function"]["name"])  # type: ignore[index]  # TypeError below
    except (TypeError, KeyError):
        raise mistyped("tools: missing field `function`") from None
    if wanted not in names:
        raise Refusal(error(422, "tool_error", f"Tool error: Tool with name {wanted} not found"))
    return wanted


def _prompts(fields: Body) -> tuple[Prompt, ...]:
    prompt = fields.get("prompt")
    if "prompt" not in fields:
        raise mistyped("missing field `prompt`")
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise mistyped("prompt: data did not match any variant of untagged enum Prompt")
    return tuple(read_text(text) for text in texts)


def _ask(
    sampling: Body,
    prompts: tuple[Prompt, ...],
    max_new_tokens: object,
    options: EngineOptions,
    shape: _Shape,
    body: Body,
) -> Ask:
    """Return the request in numbers; who calls it adds its names."""
    try:
        check_sampling(sampling)
        stops = stop_sequences(sampling)
        limit = max_new_tokens if isinstance(max_new_tokens, int) else None
        if limit == 0:
            raise invalid("`max_new_tokens` must be strictly positive")
        limits = [room_tokens(prompt, limit, options.context_tokens) for prompt in prompts]
    except Refusal as refused:
        _refuse(refused, shape)
    xargs = body.get("vllm_xargs")
    told = xargs.get("out_len") if isinstance(xargs, dict) else None
    return Ask(
        id="",
        is_chat=shape.is_chat,
        model="",
        created=0,
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        choices=tuple(
            choice_of(number, prompt, room, told, stops, options.seed)
            for number, (prompt, room) in enumerate(zip(prompts, limits, strict=True))
        ),
        max_tokens=max(limits),
        is_stream=shape.is_stream,
        native=shape.native,
    )
