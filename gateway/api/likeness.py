"""What a call of any API would be as a chat or text completion, for estimates only (pure)."""

from collections.abc import Iterator, Mapping

from gateway.backends.base import Shape

Body = Mapping[str, object]

TEXT_MEMBERS = (
    "input",
    "prompt",
    "inputs",
    "texts",
    "query",
    "queries",
    "text_1",
    "text_2",
    "documents",
    "items",
    "tokens",
)
"""Where the APIs that only read keep their texts or token ids."""


def likened(shape: Shape, body: Body) -> Body:
    """Return `messages` or `prompt`, and `max_tokens`, from wherever this API has them."""
    match shape:
        case Shape.CHOICES:
            return body
        case Shape.RESPONSE:
            given = body.get("input")
            turns = given if isinstance(given, list) else [{"role": "user", "content": given}]
            return {
                **body,
                "messages": _led_by(body.get("instructions"), turns),
                "max_tokens": body.get("max_output_tokens"),
            }
        case Shape.MESSAGE:
            said = body.get("messages")
            return {
                **body,
                "messages": _led_by(body.get("system"), said if isinstance(said, list) else []),
            }
        case Shape.GENERATED:
            parameters = body.get("parameters")
            limits = parameters if isinstance(parameters, dict) else {}
            return {"prompt": body.get("inputs"), "max_tokens": limits.get("max_new_tokens")}
        case Shape.JSON | Shape.ANY:
            if isinstance(body.get("messages"), list):
                return body
            return {"prompt": [text for name in TEXT_MEMBERS for text in _texts(body.get(name))]}


def _led_by(instructions: object, turns: list[object]) -> list[object]:
    return [{"role": "system", "content": instructions}, *turns] if instructions else turns


def _texts(value: object) -> Iterator[object]:
    """Yield the texts, token ids and media in a value, in the form of a prompt's parts."""
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            yield value
            return
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name in ("text", "content"):
            yield from _texts(value.get(name))
    elif isinstance(value, str):
        yield value
