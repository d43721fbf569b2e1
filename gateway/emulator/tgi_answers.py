"""What a TGI answer consists of: choices, tokens, events, and the headers that time it (pure)."""

from collections.abc import Sequence

import orjson

from gateway.emulator.asks import Ask, Native, Progress
from gateway.emulator.prompts import BYTES_PER_TOKEN, answer_text

VERSION = "3.3.6-dev0"
FINGERPRINT = f"{VERSION}-native"
LOGPROB = -0.5


def event(content: object) -> bytes:
    """Return one event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def chunk(ask: Ask, choices: list[dict[str, object]], usage: object) -> dict[str, object]:
    """Return one chunk of OpenAI's form; the id is always empty."""
    return {
        "object": "chat.completion.chunk" if ask.is_chat else "text_completion",
        "id": "",
        "created": ask.created,
        "model": ask.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": usage,
    }


def _is_eos(ask: Ask, number: int, token: int) -> bool:
    """Whether this is the end-of-sequence token, which has no text."""
    choice = ask.choices[number]
    return choice.finish_reason == "stop" and token + 1 == choice.output_tokens


def text_of(ask: Ask, number: int, now: Progress, start: int, end: int) -> str:
    """Return the text of tokens [start, end), with the frame of its JSON object, if any."""
    ends = end > start and _is_eos(ask, number, end - 1)
    text = answer_text(ask.choices[number].text_offset, start, end - ends)
    if not start:
        text = ask.before + text
    if ends and now.finish_reason == "stop":
        text += ask.after
    return text


def native_reason(reason: str | None) -> str | None:
    """Return what TGI's own API, and completion streams, call a finish reason."""
    return "eos_token" if reason == "stop" else reason


def _tool_call(name: str | None, arguments: str) -> dict[str, object]:
    function: dict[str, object] = {"name": name, "arguments": arguments}
    return {"id": "0", "type": "function", "function": function}


def delta(ask: Ask, text: str, *, is_first: bool) -> dict[str, object]:
    """Return what a chat chunk adds: its role every time, a function's name once."""
    if ask.tool is None:
        return {"role": "assistant", "content": text}
    call = _tool_call(ask.tool if is_first else None, text)
    return {"role": "assistant", "tool_calls": [{"index": 0, **call}]}


def message_choice(ask: Ask, number: int, now: Progress) -> dict[str, object]:
    """Return one choice of a whole chat answer."""
    text = text_of(ask, number, now, 0, now.tokens)
    message: dict[str, object] = {"role": "assistant", "content": text}
    if ask.tool is not None:
        message = {"role": "assistant", "tool_calls": [_tool_call(ask.tool, text)]}
    return {
        "index": number,
        "message": message,
        "logprobs": None,
        "finish_reason": now.finish_reason,
    }


def completion_choice(ask: Ask, number: int, now: Progress) -> dict[str, object]:
    """Return one choice of a whole text completion."""
    return {
        "index": number,
        "text": text_of(ask, number, now, 0, now.tokens),
        "logprobs": None,
        "finish_reason": now.finish_reason,
    }


def usage(prompt_tokens: int, progress: Sequence[Progress]) -> dict[str, int]:
    """Return the token counts so far."""
    completion_tokens = sum(now.tokens for now in progress)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _token(ask: Ask, token: int, text: str) -> dict[str, object]:
    return {
        "id": token,
        "text": "</s>" if _is_eos(ask, 0, token) and not text else text,
        "logprob": LOGPROB,
        "special": _is_eos(ask, 0, token),
    }


def native_answer(ask: Ask, native: Native, now: Progress) -> dict[str, object]:
    """Return the whole answer of TGI's own API."""
    text = native.text_before + text_of(ask, 0, now, 0, now.tokens)
    if not native.details:
        return {"generated_text": text}
    tokens = [
        _token(ask, token, text_of(ask, 0, now, token, token + 1)) for token in range(now.tokens)
    ]
    details = {
        "finish_reason": native_reason(now.finish_reason),
        "generated_tokens": now.tokens,
        "seed": None,
        "prefill": [],
        "tokens": tokens,
    }
    return {"generated_text": text, "details": details}


def native_event(
    ask: Ask, native: Native, now: Progress, text: str, *, is_last: bool
) -> dict[str, object]:
    """Return the event for one token in TGI's own API."""
    generated = details = None
    if is_last:
        generated = native.text_before + text_of(ask, 0, now, 0, now.tokens)
        if native.details:
            details = {
                "finish_reason": native_reason(now.finish_reason),
                "generated_tokens": now.tokens,
                "seed": None,
                "input_length": ask.prompt_tokens,
            }
    return {
        "index": now.told + 1,
        "token": _token(ask, now.told, text),
        "generated_text": generated,
        "details": details,
    }


def compute_headers(ask: Ask) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that every answer bears."""
    characters = ask.prompt_tokens * BYTES_PER_TOKEN
    return (
        (b"x-compute-type", b"gpu+optimized"),
        (b"x-compute-characters", b"%d" % characters),
    )


def timing_headers(ask: Ask, progress: Sequence[Progress]) -> tuple[tuple[bytes, bytes], ...]:
    """Return how long it took: in whole milliseconds but for the one in seconds, as TGI does."""
    queue_s = max(now.queue_s for now in progress)
    inference_s = max(now.inference_s for now in progress)
    tokens = sum(now.tokens for now in progress)
    total_s = queue_s + inference_s
    values = {
        b"x-compute-time": total_s,
        b"x-total-time": int(total_s * 1000),
        b"x-validation-time": 0,
        b"x-queue-time": int(queue_s * 1000),
        b"x-inference-time": int(inference_s * 1000),
        b"x-time-per-token": int(inference_s * 1000 / max(tokens, 1)),
        b"x-prompt-tokens": ask.prompt_tokens,
        b"x-generated-tokens": tokens,
    }
    return (
        *compute_headers(ask),
        *((name, str(value).encode()) for name, value in values.items()),
    )
