"""Reading requests as vLLM 0.32 does, its error bodies included (pure).

The texts follow recorded answers of vLLM 0.32.0. What the emulator has no use for (temperature,
stop, seed, ...) is checked where vLLM checks it, and otherwise ignored.
"""

from collections.abc import Mapping

import orjson

from gateway.emulator.asks import Ask, Choice, Refusal
from gateway.emulator.fields import (
    Body,
    invalid,
    optional_float,
    optional_int,
    read_fields,
    read_object,
    refusal,
)
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import (
    Prompt,
    natural_output_tokens,
    read_messages,
    read_text,
    read_token_ids,
)

COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates at most when the client does not say."""
MAX_LOGPROBS = 20
MAX_CHOICES = 16_384
_TEXT_PARTS = ("text", "refusal", "input_text", "output_text")
VOCABULARY = 128_256
"""Llama 3's."""


def read_chat(
    headers: Mapping[bytes, bytes], body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what a /v1/chat/completions request asks for; Refusal when vLLM would refuse."""
    fields = read_fields(headers, body)
    if "messages" not in fields:
        raise invalid("missing", "messages", "Field required", f"<dict of {len(fields)} items>")
    model = model_of(fields, options)
    check_sampling(fields)
    parts = read_parts(fields["messages"], model)
    tools = fields.get("tools")
    if tools:
        parts.insert(0, ("tools", orjson.dumps(tools).decode()))
    tool, is_required = _forced_tool(fields, options)
    is_json = tool is not None or _wants_json(fields)
    limit = optional_int(fields, "max_completion_tokens")
    if limit is None:
        limit = optional_int(fields, "max_tokens")
    return make_ask(
        fields,
        (read_messages(parts),),
        options,
        ask_id=f"chatcmpl-{request_id(headers, fields, fresh_id)}",
        created=created,
        model=model,
        max_tokens=limit,
        is_chat=True,
        before='{"text": "' if is_json else "",
        after='"}' if is_json else "",
        tool=tool,
        is_tool_required=is_required,
    )


def read_completion(
    headers: Mapping[bytes, bytes], body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what a /v1/completions request asks for; Refusal when vLLM would refuse."""
    fields = read_fields(headers, body)
    model = model_of(fields, options)
    check_sampling(fields)
    limit = optional_int(fields, "max_tokens")
    return make_ask(
        fields,
        read_prompts(fields.get("prompt")),
        options,
        ask_id=f"cmpl-{request_id(headers, fields, fresh_id)}",
        created=created,
        model=model,
        max_tokens=COMPLETION_MAX_TOKENS if limit is None else limit,
        is_chat=False,
    )


def read_tokenize(headers: Mapping[bytes, bytes], body: bytes) -> Prompt:
    """Return the prompt of a /tokenize request: `prompt`, or `messages` as chat would see them."""
    fields = read_fields(headers, body)
    if "messages" in fields:
        return read_messages(read_parts(fields["messages"], str(fields.get("model"))))
    return read_prompts(fields.get("prompt"))[0]


def read_detokenize(headers: Mapping[bytes, bytes], body: bytes) -> int:
    """Return how many tokens a /detokenize request holds."""
    fields = read_fields(headers, body)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise invalid("missing", "tokens", "Field required", f"<dict of {len(fields)} items>")
    return len(tokens)


# -- what vLLM checks


def model_of(fields: Body, options: EngineOptions) -> str:
    """Return the model that is meant; Refusal if it is not served."""
    model = fields.get("model") or options.models[0]
    if model not in options.models:
        known = ", ".join(options.models)
        raise refusal(
            404,
            f"The model `{model}` does not exist. Valid aliases: {known}.",
            "NotFoundError",
            "model",
        )
    return str(model)


def request_id(headers: Mapping[bytes, bytes], fields: Body, fresh_id: str) -> str:
    """Return the id that the client gave, or the fresh one."""
    given = headers.get(b"x-request-id")
    return given.decode("latin-1") if given else str(fields.get("request_id") or fresh_id)


def _bad(message: str, param: str | None = None, value: object = None) -> Refusal:
    if param is not None:
        message += f" (parameter={param}" + (f", value={value})" if value is not None else ")")
    return refusal(400, message, "BadRequestError", param)


def check_sampling(fields: Body) -> None:
    """Refuse sampling parameters that vLLM refuses."""
    temperature = optional_float(fields, "temperature")
    if temperature is not None and temperature < 0:
        raise _bad(
            f"temperature must be non-negative, got {temperature}.", "temperature", temperature
        )
    top_p = optional_float(fields, "top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise _bad(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    n = optional_int(fields, "n")
    if n is not None and n < 1:
        raise _bad(f"n must be at least 1, got {n}.")
    if n is not None and n > MAX_CHOICES:
        raise _bad(f"n must be at most {MAX_CHOICES}, got {n}.")
    if fields.get("stream_options") and not fields.get("stream"):
        raise _bad("Stream options can only be defined when `stream=True`.", "stream_options")
    logprobs = fields.get("top_logprobs") or 0
    if isinstance(logprobs, int) and logprobs > MAX_LOGPROBS:
        raise _bad(
            f"Requested sample logprobs of {logprobs}, which is greater than max allowed: "
            f"{MAX_LOGPROBS}",
            "logprobs",
            logprobs,
        )


def _wants_json(fields: Body) -> bool:
    wanted = read_object(fields, "response_format")
    if wanted.get("type") == "json_schema" and not wanted.get("json_schema"):
        raise _bad(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )
    return wanted.get("type") in ("json_schema", "json_object")


def _forced_tool(fields: Body, options: EngineOptions) -> tuple[str | None, bool]:
    """Return the function that the answer must call, and whether any would have done."""
    tools = fields.get("tools")
    choice = fields.get("tool_choice", "auto")
    if not tools or choice in ("none", None):
        return None, False
    if choice == "auto":
        if not options.auto_tool_choice:
            raise _bad(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser '
                "to be set"
            )
        return None, False
    try:
        if choice == "required":
            return str(tools[0]["function"]["name"]), True  # type: ignore[index]  # TypeError below
        return str(choice["function"]["name"]), False  # type: ignore[index]  # TypeError below
    except (TypeError, KeyError, IndexError):
        raise invalid("value_error", "tool_choice", "Invalid tool choice", choice) from None


# -- prompts


def read_parts(messages: object, model: str) -> list[tuple[str, str]]:
    """Return a conversation's (role, text) pairs."""
    if not isinstance(messages, list):
        raise invalid("list_type", "messages", "Input should be a valid list", messages)
    if not messages:
        raise _bad(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    parts: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message:
            raise invalid("missing", f"messages.{number}.role", "Field required", message)
        text = _content(message.get("content"), model)
        if message.get("tool_calls"):
            text += orjson.dumps(message["tool_calls"]).decode()
        parts.append((str(message["role"]), text))
    return parts


def _content(content: object, model: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            raise _bad(f"{model} is not a multimodal model")
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def read_prompts(prompt: object) -> tuple[Prompt, ...]:
    """Return the prompts in a text, a list of texts, token ids, or a list of those."""
    missing = _bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if not prompt:
        raise missing
    if isinstance(prompt, str):
        return (read_text(prompt),)
    if not isinstance(prompt, list):
        raise invalid("string_type", "prompt", "Input should be a valid string", prompt)
    if all(isinstance(part, int) for part in prompt):
        highest = max(prompt)
        if highest >= VOCABULARY:
            raise _bad(f"Token id {highest} is out of vocabulary")
        return (read_token_ids(prompt),)
    return tuple(single for part in prompt for single in read_prompts(part))


# -- the answer's size


def make_ask(
    fields: Body,
    prompts: tuple[Prompt, ...],
    options: EngineOptions,
    *,
    ask_id: str,
    created: int,
    model: str,
    max_tokens: int | None,
    is_chat: bool,
    before: str = "",
    after: str = "",
    tool: str | None = None,
    is_tool_required: bool = False,
    is_response: bool = False,
) -> Ask:
    """Return the request with the size of its answer; Refusal if that has no room."""
    context = options.context_tokens
    if max_tokens is not None and max_tokens < 1:
        raise _bad(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if max_tokens is not None and max_tokens > context:
        raise _bad(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={context}. "
            "Please request fewer output tokens.",
            "max_tokens",
            max_tokens,
        )
    longest = max(prompt.tokens for prompt in prompts)
    _check_context(longest, max_tokens, context)
    limit = max_tokens or context - longest
    shortest = optional_int(fields, "min_tokens") or 0
    if shortest > limit:
        raise _bad(f"min_tokens must be less than or equal to max_tokens={limit}, got {shortest}.")
    told = optional_int(read_object(fields, "vllm_xargs"), "out_len")
    choices: list[Choice] = []
    for prompt in prompts:
        for number in range(optional_int(fields, "n") or 1):
            length = told or natural_output_tokens(prompt, number, options.seed)
            length = limit if fields.get("ignore_eos") else max(length, shortest, 1)
            choices.append(
                Choice(
                    index=len(choices),
                    prompt_tokens=prompt.tokens,
                    prefix=prompt.prefix,
                    output_tokens=min(length, limit),
                    finish_reason="length"
                    if length > limit or fields.get("ignore_eos")
                    else "stop",
                    text_offset=(prompt.digest + number) & 0xFFFF,
                )
            )
    stream_options = read_object(fields, "stream_options")
    return Ask(
        id=ask_id,
        is_chat=is_chat,
        model=model,
        created=created,
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        choices=tuple(choices),
        max_tokens=limit,
        priority=optional_int(fields, "priority") or 0,
        is_stream=bool(fields.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("continuous_usage_stats")),
        before=before,
        after=after,
        tool=tool,
        is_tool_required=is_tool_required,
        is_response=is_response,
    )


def _check_context(prompt_tokens: int, max_tokens: int | None, context: int) -> None:
    reach = f"This model's maximum context length is {context} tokens. However, "
    if prompt_tokens >= context:
        # vLLM stops tokenizing one beyond the limit, so that is what it counts.
        raise _bad(
            f"{reach}your prompt contains at least {context + 1} input tokens, which exceeds this "
            "limit even without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            context + 1,
        )
    if max_tokens is not None and prompt_tokens + max_tokens > context:
        raise _bad(
            f"{reach}you requested {max_tokens} output tokens and your prompt contains "
            f"{prompt_tokens} input tokens, for a total of {prompt_tokens + max_tokens} tokens. "
            "Please reduce the length of the input prompt or the number of requested output "
            "tokens.",
            "input_tokens",
            prompt_tokens,
        )
