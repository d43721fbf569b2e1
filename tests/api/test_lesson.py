"""Outlines: the same for the same body, another for whatever else a call says."""

from dataclasses import replace

from gateway.api.calls import Asked, read_call
from gateway.api.endpoints import ENDPOINTS
from gateway.api.lesson import MAX_OUTLINED, MAX_OUTLINED_BYTES, Outline, Outlines
from gateway.core.types import ANONYMOUS, TenantId

CHAT = ENDPOINTS["/v1/chat/completions"]


def a_body(text: str) -> bytes:
    """A chat call's."""
    return b'{"model":"m1","messages":[{"role":"user","content":"%b"}]}' % text.encode()


def asked_of(raw: bytes) -> Asked:
    """What it asks for."""
    return read_call(raw, {}, ANONYMOUS, lambda named: (named or "", named or ""), CHAT)


def outlined(outlines: Outlines, raw: bytes, **said: object) -> Outline:
    """The outline of a call that says this."""
    asked = asked_of(raw)
    asked = replace(asked, said=replace(asked.said, **said))  # type: ignore[arg-type]
    return outlines.of(CHAT, asked, ANONYMOUS, raw)


def test_the_same_call_has_the_same_outline_and_no_other_call_has_it() -> None:
    outlines, raw = Outlines(), a_body("a question")
    first = outlined(outlines, raw)

    assert outlined(outlines, raw) is first
    assert outlined(outlines, a_body("another")) != first
    assert outlined(outlines, raw, stage="s") != first
    assert outlined(outlines, raw, hint_tokens=5) != first
    assert outlined(outlines, raw, session="1") != first
    theirs = outlines.of(CHAT, asked_of(raw), TenantId("other"), raw)
    assert theirs is not first


def test_outlines_are_bounded_in_number_and_in_length() -> None:
    outlines, raw = Outlines(), a_body("a question")
    first, long = outlined(outlines, raw), a_body("a" * MAX_OUTLINED_BYTES)

    assert outlined(outlines, long) == outlined(outlines, long)
    assert outlined(outlines, long) is not outlined(outlines, long)
    for number in range(MAX_OUTLINED):
        outlined(outlines, a_body(str(number)))
    assert outlined(outlines, raw) is not first
