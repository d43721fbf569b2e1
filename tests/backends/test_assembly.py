"""A whole answer from chunks, in the form of one that the engine gave whole."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.assembly import Assembly, Mould, form_of

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGE: Json = {
    "role": "assistant",
    "content": "as learned",
    "refusal": None,
    "function_call": None,
    "reasoning": None,
}
WHOLE: Json = {
    "id": "a",
    "object": "chat.completion",
    "created": 1,
    "model": "m1",
    "choices": [
        {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"},
    ],
    "system_fingerprint": "vllm-1",
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "details": None},
    "kv_transfer_params": None,
}
USAGE = {"completion_tokens": 9, "prompt_tokens": 4, "total_tokens": 13}


def assembled(*deltas: Json, mould: Mould | None = None, **last: object) -> Json:
    """What chunks with these deltas become; the choice of the last has these members too."""
    assembly = Assembly()
    for number, delta in enumerate(deltas):
        ends = {"finish_reason": "stop", **last} if number == len(deltas) - 1 else {}
        choice = {"index": 0, "delta": delta, **ends}
        chunk = {"id": "b", "object": "chat.completion.chunk", "created": 2, "model": "m1"}
        assembly.add({**chunk, "choices": [choice], "usage": None})
    assembly.add({"id": "b", "choices": [], "usage": USAGE})
    return assembly.whole(mould or Mould(WHOLE))


def message_of(answer: Json) -> Json:
    """The message of the only choice."""
    [choice] = answer["choices"]
    message: Json = choice["message"]
    return message


def test_what_is_the_engines_stays_and_what_is_the_answers_is_new() -> None:
    answer = assembled({"role": "assistant", "content": ""}, {"content": "new "}, {"content": "x"})

    message = {**MESSAGE, "content": "new x"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    expected = {**WHOLE, "id": "b", "created": 2, "choices": [choice], "usage": {**USAGE}}
    expected["usage"]["details"] = None
    assert answer == expected
    assert list(answer) == list(WHOLE)
    assert list(answer["usage"]) == list(WHOLE["usage"])


def test_a_mould_holds_no_text() -> None:
    assert "as learned" not in repr(vars(Mould(WHOLE)))


def test_an_empty_answer_is_empty() -> None:
    assert message_of(assembled({"role": "assistant", "content": ""}))["content"] == ""


def test_reasoning_is_joined_by_itself() -> None:
    message = message_of(
        assembled({"role": "assistant"}, {"reasoning": "be"}, {"reasoning": "cause"})
    )

    assert message == {**MESSAGE, "content": None, "reasoning": "because"}
    assert list(message) == list(MESSAGE)


def test_what_is_no_text_is_not_guessed_at() -> None:
    call = {"index": 0, "id": "c0", "function": {"name": "f", "arguments": "{}"}}

    with pytest.raises(ValueError, match="no text"):
        assembled({"role": "assistant", "content": ""}, {"tool_calls": [call]})


def test_logprobs_are_joined() -> None:
    def piece(token: str) -> Json:
        return {"content": [{"token": token, "logprob": -0.5}]}

    assembly = Assembly()
    for token in "ab":
        choice = {"index": 0, "delta": {"content": token}, "logprobs": piece(token)}
        assembly.add({"choices": [choice]})
    assembly.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    [choice] = assembly.whole(Mould(WHOLE))["choices"]  # type: ignore[misc]

    assert choice["logprobs"] == {"content": piece("a")["content"] + piece("b")["content"]}


def test_a_text_completion_has_texts_and_lists() -> None:
    form = {"index": 0, "text": "old", "logprobs": None, "finish_reason": "stop", "x": None}
    mould = Mould({**WHOLE, "object": "text_completion", "choices": [form]})
    assembly = Assembly()
    for number, text in enumerate(["he", "llo"]):
        logprobs = {"tokens": [text], "text_offset": [number], "top_logprobs": None}
        assembly.add({"choices": [{"index": 0, "text": text, "logprobs": logprobs}]})
    assembly.add({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    answer: Json = assembly.whole(mould)

    logprobs = {"tokens": ["he", "llo"], "text_offset": [0, 1], "top_logprobs": None}
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "hello", "logprobs": logprobs, "finish_reason": "length", "x": None}
    ]


@given(
    st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_however_choices_come_mixed_their_texts_are_whole(
    texts: list[list[str]], chance: Random
) -> None:
    left = {number: list(pieces) for number, pieces in enumerate(texts)}
    assembly = Assembly()
    while left:
        number = chance.choice(sorted(left))
        delta = {"content": left[number].pop(0)}
        ends = {"finish_reason": "stop"} if not left[number] else {}
        assembly.add({"choices": [{"index": number, "delta": delta, **ends}]})
        if not left[number]:
            del left[number]
    choices: Any = assembly.whole(Mould(WHOLE))["choices"]

    assert [choice["index"] for choice in choices] == list(range(len(texts)))
    assert [choice["message"]["content"] for choice in choices] == ["".join(t) for t in texts]


def test_choices_that_miss_or_do_not_end_are_no_answer() -> None:
    empty, gap, open_end = Assembly(), Assembly(), Assembly()
    gap.add({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
    open_end.add({"choices": [{"index": 0, "delta": {"content": "a"}}]})

    for assembly in (empty, gap, open_end):
        with pytest.raises(ValueError, match="choice"):
            assembly.whole(Mould(WHOLE))


def test_what_chunks_do_not_say_is_noticed() -> None:
    assembly = Assembly()
    assembly.add({"id": "b", "created": 1, "model": "m1", "choices": []})

    assert not assembly.lacks(Mould(WHOLE))
    assert assembly.lacks(Mould({**WHOLE, "timings": {"ms": 3}}))


@pytest.mark.parametrize(
    ("path", "body", "form"),
    [
        (CHAT, {"model": "m1", "messages": [], "n": 2}, CHAT),
        (CHAT, {"model": "m1", "echo": False, "suffix": None, "tools": []}, CHAT),
        (CHAT, {"logprobs": True}, f"{CHAT} logprobs"),
        (CHAT, {"tools": [1]}, ""),
        (COMPLETIONS, {"prompt": "x"}, COMPLETIONS),
        (COMPLETIONS, {"prompt": "x", "echo": True}, ""),
        (COMPLETIONS, {"prompt": "x", "messages": []}, COMPLETIONS),
        (COMPLETIONS, {"prompt": "x", "messages": [1]}, ""),
        ("/v1/responses", {"input": "x"}, ""),
    ],
)
def test_only_what_is_known_has_a_form(path: str, body: Json, form: str) -> None:
    assert form_of(path, body) == form
