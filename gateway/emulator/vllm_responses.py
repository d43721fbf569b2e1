"""/v1/responses as vLLM 0.32 answers it, text only (pure). Shapes follow its protocol's classes."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import orjson

from gateway.emulator.asks import Ask, Progress, Reply
from gateway.emulator.fields import invalid, optional_int, read_fields, read_object, refusal
from gateway.emulator.options import EngineOptions
from gateway.emulator.prompts import answer_text, read_messages
from gateway.emulator.vllm_requests import (
    check_sampling,
    make_ask,
    model_of,
    read_parts,
    request_id,
)

PATH = "/v1/responses"
MAX_KEPT = 256

Json = dict[str, object]


def read_response(
    headers: Mapping[bytes, bytes], body: bytes, options: EngineOptions, fresh_id: str, created: int
) -> Ask:
    """Return what a request asks for; Refusal when vLLM would refuse."""
    fields = read_fields(headers, body)
    if "input" not in fields:
        raise invalid("missing", "input", "Field required", f"<dict of {len(fields)} items>")
    model = model_of(fields, options)
    check_sampling(fields)
    given = fields["input"]
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    parts = read_parts(turns, model)
    if isinstance(fields.get("instructions"), str):
        parts.insert(0, ("system", str(fields["instructions"])))
    is_json = read_object(read_object(fields, "text"), "format").get("type") in (
        "json_schema",
        "json_object",
    )
    return make_ask(
        fields,
        (read_messages(parts),),
        options,
        ask_id=f"resp_{request_id(headers, fields, fresh_id)}",
        created=created,
        model=model,
        max_tokens=optional_int(fields, "max_output_tokens"),
        is_chat=True,
        is_response=True,
        before='{"text": "' if is_json else "",
        after='"}' if is_json else "",
    )


class KeptResponses:
    """The last responses that an engine made."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Json] = OrderedDict()

    def keep(self, response: Json) -> Json:
        """Keep a response that has ended; return it."""
        self._by_id[str(response["id"])] = response
        if len(self._by_id) > MAX_KEPT:
            self._by_id.popitem(last=False)
        return response

    def reply(self, method: str, path: str) -> Reply | None:
        """Answer a request for one of them; None if the path is another."""
        identity, _, action = path.removeprefix(f"{PATH}/").partition("/")
        if not path.startswith(f"{PATH}/") or action not in ("", "cancel"):
            return None
        if method != ("POST" if action else "GET"):
            return Reply(405, b'{"detail":"Method Not Allowed"}')
        response = self._by_id.get(identity)
        if response is None:
            message = f"Response with id '{identity}' not found."
            raise refusal(404, message, "invalid_request_error")
        if action:
            raise refusal(400, "Cannot cancel a synchronous response.", "invalid_request_error")
        return Reply(200, orjson.dumps(response))


def response_of(ask: Ask, progress: Sequence[Progress]) -> Json:
    """Return the whole response."""
    now = progress[0]
    is_cut = now.finish_reason == "length"
    return {
        **_head(ask, "incomplete" if is_cut else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [_item(ask, "completed", [_part(_text(ask, now, 0))])],
        "usage": {
            "input_tokens": ask.prompt_tokens,
            "input_tokens_details": {"cached_tokens": now.cached_tokens},
            "output_tokens": now.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": ask.prompt_tokens + now.tokens,
        },
    }


def response_frames(ask: Ask, now: Progress) -> bytes:
    """Return the events for what has come since the last time; now it is told."""
    frames: list[bytes] = []
    if not now.told:
        begun = _head(ask, "in_progress")
        frames.append(_event(now, "response.created", response=begun))
        frames.append(_event(now, "response.in_progress", response=begun))
        item = _item(ask, "in_progress", [])
        frames.append(_event(now, "response.output_item.added", output_index=0, item=item))
        frames.append(_event(now, "response.content_part.added", **_place(ask), part=_part("")))
    if now.tokens > now.told or now.finish_reason is not None:
        delta = _text(ask, now, now.told)
        now.told = now.tokens
        frames.append(
            _event(now, "response.output_text.delta", **_place(ask), delta=delta, logprobs=[])
        )
    return b"".join(frames)


def response_ending(ask: Ask, now: Progress, response: Json) -> bytes:
    """Return the events after the last token."""
    text = _text(ask, now, 0)
    place = _place(ask)
    item = _item(ask, "completed", [_part(text)])
    return b"".join(
        [
            _event(now, "response.output_text.done", **place, text=text, logprobs=[]),
            _event(now, "response.content_part.done", **place, part=_part(text)),
            _event(now, "response.output_item.done", output_index=0, item=item),
            _event(now, f"response.{response['status']}", response=response),
        ]
    )


def _head(ask: Ask, status: str) -> Json:
    return {
        "id": ask.id,
        "object": "response",
        "created_at": ask.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": None,
        "model": ask.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": ask.max_tokens,
        "previous_response_id": None,
        "service_tier": "auto",
        "truncation": "disabled",
        "usage": None,
    }


def _place(ask: Ask) -> Json:
    return {"item_id": f"msg_{ask.id[5:]}", "output_index": 0, "content_index": 0}


def _item(ask: Ask, status: str, content: list[Json]) -> Json:
    return {
        "id": f"msg_{ask.id[5:]}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _text(ask: Ask, now: Progress, start: int) -> str:
    text = answer_text(ask.choices[0].text_offset, start, now.tokens)
    if not start:
        text = ask.before + text
    return text + ask.after if now.finish_reason == "stop" else text


def _event(now: Progress, kind: str, **fields: object) -> bytes:
    data = {"type": kind, "sequence_number": now.events, **fields}
    now.events += 1
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))
