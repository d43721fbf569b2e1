"""TgiDialect: Text Generation Inference 3, which refuses or ignores some of OpenAI's API.

By the source of 3.3.6-dev0. Its answers bear no id, name finish reasons in its own way, and tell
usage of text completions beside the last text.
"""

from collections.abc import Mapping

import orjson

from gateway.backends.assembly import WITH_LOGPROBS
from gateway.backends.base import Call, EngineError
from gateway.backends.dialect import Mender
from gateway.backends.openai import TOO_LONG
from gateway.backends.tgi_answers import AnswerMender
from gateway.core.outcomes import FailureKind

BASE_MODEL = "tgi"
"""What TGI calls the model it was started with; any other name is taken for an adapter's."""
CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
_UNSUPPORTED = "unsupported_parameter"
_FALSY_UNLESS_ASKED = ("logit_bias", "echo", "min_tokens", "ignore_eos")
_ONE_UNLESS_ASKED = ("n", "best_of")
_INVALID = ("Input validation error", "Template error", "Tool error", "Failed to deserialize")
_TOO_LONG = ("`inputs` must have less than", "`inputs` tokens + `max_new_tokens` must be")

Body = dict[str, object]


class TgiDialect:
    """Says things the way TGI takes them, and refuses what it would silently leave out."""

    def __init__(self, adapters: frozenset[str] = frozenset()) -> None:
        self._adapters = adapters

    def prepare(self, call: Call, engine_priority: int) -> tuple[bytes, Mender | None]:  # noqa: ARG002 - TGI has no priorities
        """Return the body to send, and what mends the answer."""
        if call.path not in (CHAT_PATH, COMPLETION_PATH):
            return call.body, None
        body: Body = orjson.loads(call.body)
        model = str(body["model"])
        is_chat = call.path == CHAT_PATH
        _refuse(body, is_chat=is_chat)
        prompts = body.get("prompt")
        mender = AnswerMender(
            answer_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{call.upstream_id}",
            model=call.renamed[1] if call.renamed else model,
            streams=len(prompts) if isinstance(prompts, list) else 1,
        )
        body["model"] = model if model in self._adapters else BASE_MODEL
        return orjson.dumps(_adapted(body, is_chat=is_chat)), mender

    def tells_all(self, form: str) -> bool:
        """Return False for logprobs: no real one has been asked."""
        return not form.endswith(WITH_LOGPROBS)

    def explain(self, error: EngineError) -> EngineError:
        """Return what the error means: on streams its status is 422 whatever it is."""
        message = str(error.error.get("message"))
        if message == "Model is overloaded":
            return error.meaning(FailureKind.OVERLOADED, 503)
        if message.startswith(("Request failed during generation", "Incomplete generation")):
            return error.meaning(FailureKind.SERVER_ERROR, 502)
        if error.status in (400, 415, 422) or message.startswith(_INVALID):
            is_too_long = any(text in message for text in _TOO_LONG)
            code = TOO_LONG if is_too_long else None
            return error.meaning(FailureKind.INVALID_REQUEST, 400, code)
        if error.kind is FailureKind.SERVER_ERROR:
            return error.meaning(FailureKind.SERVER_ERROR, 502)
        return error

    def adapts_to(self, error: EngineError) -> bool:  # noqa: ARG002 - nothing to adapt
        """Return False: there is only one way to say it."""
        return False


def _refuse(body: Body, *, is_chat: bool) -> None:
    """Refuse what TGI would ignore although it changes what the answer is."""
    asked = [name for name in _FALSY_UNLESS_ASKED if body.get(name)]
    asked += [name for name in _ONE_UNLESS_ASKED if body.get(name) not in (None, 1)]
    if not is_chat:
        asked += [name for name in ("logprobs", "suffix") if body.get(name)]
        prompt = body.get("prompt")
        texts = prompt if isinstance(prompt, list) else [prompt]
        asked += [] if all(isinstance(text, str) for text in texts) else ["prompt"]
    if not asked:
        return
    name = asked[0]
    what = "a prompt of token ids" if name == "prompt" else f"`{name}` = {body[name]!r:.40}"
    raise EngineError(
        FailureKind.UNSUPPORTED,
        400,
        {
            "message": f"The model's backend (TGI) does not support {what}.",
            "param": name,
            "code": _UNSUPPORTED,
        },
    )


def _adapted(body: Body, *, is_chat: bool) -> Body:
    """Return the body in the form that TGI takes."""
    # For several fields TGI takes null for a wrong type, and everywhere else for nothing said.
    body = {name: value for name, value in body.items() if value is not None}
    for name in (*_FALSY_UNLESS_ASKED, *_ONE_UNLESS_ASKED):
        body.pop(name, None)
    # Its range is open, and 1 means all there is.
    if body.get("top_p") == 1:
        del body["top_p"]
    # It adds 2 and takes the sum for a repetition penalty: no penalty would become a strong one.
    if body.get("presence_penalty") == 0:
        del body["presence_penalty"]
    if isinstance(body.get("stop"), str):
        body["stop"] = [body["stop"]]
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    if not is_chat:
        # It knows no usage chunk there, but tells usage unasked.
        body.pop("stream_options", None)
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and "value" not in wanted:
        grammar = _grammar(wanted)
        if grammar is None:
            del body["response_format"]
        else:
            body["response_format"] = grammar
    return body


def _grammar(wanted: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return a response format of OpenAI's as TGI says it; None: any text."""
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json", "value": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"type": "json", "value": schema}
    return wanted
