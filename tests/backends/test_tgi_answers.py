"""TGI's answers in the form of OpenAI's."""

from copy import deepcopy
from typing import Any

from gateway.backends.dialect import Frame
from gateway.backends.tgi_answers import AnswerMender


def a_mender(streams: int = 1) -> AnswerMender:
    return AnswerMender("cmpl-req-1", "m1", streams)


def a_frame(choice: Frame | None = None, **more: object) -> Frame:
    """A chunk as TGI sends it."""
    choices = [] if choice is None else [{"index": 0, "finish_reason": None, **choice}]
    return {"id": "", "model": "tgi", "choices": choices, "usage": None, **more}


def test_a_frame_gets_an_id_and_its_public_name() -> None:
    [frame] = a_mender().frame(a_frame({"delta": {"role": "assistant", "content": "a"}}))

    assert (frame["id"], frame["model"]) == ("cmpl-req-1", "m1")
    assert frame["choices"] == [
        {"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": "a"}}
    ]


def test_finish_reasons_are_openais() -> None:
    for said, meant in {
        "": None,
        "eos_token": "stop",
        "stop_sequence": "stop",
        "stop": "stop",
        "length": "length",
    }.items():
        answer: Frame = a_frame({"text": "a", "finish_reason": said})
        [frame] = a_mender().frame(deepcopy(answer))
        a_mender().whole(answer)
        assert [frame["choices"], answer["choices"]] == [
            [{"index": 0, "finish_reason": meant, "text": "a"}]
        ] * 2


def test_usage_beside_the_last_text_becomes_a_frame_of_its_own() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    text, told = a_mender().frame(a_frame({"text": "a", "finish_reason": "length"}, usage=usage))

    assert "usage" not in text
    assert (told["choices"], told["usage"]) == ([], usage)
    assert told["id"] == "cmpl-req-1"


def test_usage_of_several_prompts_is_told_once_in_sum() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    mender = a_mender(streams=2)
    last = a_frame({"text": "a", "finish_reason": "length"}, usage=usage)

    assert len(mender.frame(deepcopy(last))) == 1
    _, told = mender.frame(deepcopy(last))
    assert told["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}


def test_the_pieces_of_a_tool_call_say_its_name_and_id_once() -> None:
    mender = a_mender()

    def piece(name: str | None, arguments: str, finish: str | None = None) -> Any:
        function = {"name": name, "arguments": arguments}
        call = {"index": 0, "id": "0", "type": "function", "function": function}
        delta = {"role": "assistant", "tool_calls": [call]}
        [frame] = mender.frame(a_frame({"delta": delta, "finish_reason": finish}))
        choices = frame["choices"]
        assert isinstance(choices, list)
        return choices[0]

    first, second = piece("look_up", "{"), piece(None, "}", "stop")

    [begun], [goes_on] = first["delta"]["tool_calls"], second["delta"]["tool_calls"]
    assert begun["id"] == "call-cmpl-req-1-0-0"
    assert begun["function"] == {"name": "look_up", "arguments": "{"}
    assert goes_on == {"index": 0, "function": {"arguments": "}"}}
    assert second["finish_reason"] == "tool_calls"


def test_a_whole_tool_call_has_an_id_of_its_own_and_null_content() -> None:
    call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message: Frame = {"role": "assistant", "tool_calls": [call]}
    a_mender().whole({"choices": [{"message": message, "finish_reason": "stop"}]})

    assert message["content"] is None
    assert call["id"] == "call-cmpl-req-1-0-0"
