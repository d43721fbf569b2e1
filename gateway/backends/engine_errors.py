"""The error bodies of engines, brought into OpenAI's shape (pure).

vLLM nests (`{"error": {"message", "type", "param", "code"}}`) since 0.9 and was flat before; a
missing key is `{"error": "Unauthorized"}`; TGI says `{"error": text, "error_type": kind}`; FastAPI
says `{"detail": …}`; and what stands between may answer with a page of HTML.
"""

from collections.abc import Mapping
from http import HTTPStatus

from gateway.backends.lenient_json import loads
from gateway.core.outcomes import FailureKind

UNREADABLE = frozenset({400, 413, 415, 422})
"""Statuses with which an engine says that it could not read a request."""
MAX_TEXT_BYTES = 1000


def kind_of_status(status: int) -> FailureKind:
    """Return what an error status says about whose fault it is."""
    if status in (429, 503):
        return FailureKind.OVERLOADED
    # 424 is TGI's "generation failed".
    if status >= 500 or status == 424:
        return FailureKind.SERVER_ERROR
    return FailureKind.INVALID_REQUEST


def error_of_body(status: int, body: bytes, content_type: str) -> dict[str, object]:
    """Return the error that a body with an error status holds."""
    try:
        said = loads(body)
    except ValueError:
        said = None
    # TGI says in plain text what it cannot read of a request.
    if said is None and content_type.startswith("text/plain") and status in UNREADABLE:
        said = {"message": body[:MAX_TEXT_BYTES].decode("utf-8", "replace")}
    return error_of(said, status)


def error_of(said: object, status: int) -> dict[str, object]:
    """Return the error in a parsed body or event, with all four fields."""
    if isinstance(said, Mapping):
        inner = said.get("error")
        if isinstance(inner, Mapping):
            return _shaped(inner, status)
        if isinstance(inner, str):
            return _shaped({"message": inner, "type": said.get("error_type")}, status)
        if isinstance(said.get("message"), str):
            return _shaped(said, status)
        if "detail" in said:
            return _shaped({"message": _detail(said["detail"])}, status)
    return _shaped({}, status)


def status_of(said: object) -> int:
    """Return the HTTP status that an error inside a 200 answer means."""
    code: object = None
    if isinstance(said, Mapping):
        inner = said.get("error", said)
        if isinstance(inner, Mapping):
            code = inner.get("code") or inner.get("http_status_code")
        elif said.get("error_type") == "overloaded":
            code = 429
        elif said.get("error_type") == "validation":
            code = 422
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    # TGI sends 422 whatever the cause; an overloaded engine is not the client's fault.
    if isinstance(said, Mapping) and "overloaded" in str(said.get("error")):
        return 429
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
        return code
    return 500


def _shaped(error: Mapping[str, object], status: int) -> dict[str, object]:
    message, kind, param, code = (error.get(key) for key in ("message", "type", "param", "code"))
    return {
        "message": message if isinstance(message, str) and message else _phrase(status),
        "type": kind if isinstance(kind, str) else None,
        "param": param if isinstance(param, str) else None,
        "code": code if isinstance(code, str | int) and not isinstance(code, bool) else None,
    }


def _phrase(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "an unknown status"
    return f"The engine answered {status} ({phrase}) without saying why."


def _detail(detail: object) -> str:
    if isinstance(detail, str):
        return detail
    if isinstance(detail, list):
        texts = [item.get("msg") for item in detail if isinstance(item, Mapping)]
        return "; ".join(text for text in texts if isinstance(text, str)) or "invalid request"
    return "invalid request"
