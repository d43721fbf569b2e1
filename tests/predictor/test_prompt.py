"""Stage keys and the text to embed, from a request's body."""

from typing import Any

import pytest

from gateway.predictor.prompt import NO_STAGE, query_of, stage_keys, text_of

LONG = "Which customers have ordered more than three times in the last year, and what?"


def chat(*messages: tuple[str, Any], **rest: Any) -> dict[str, Any]:
    return {"messages": [{"role": r, "content": c} for r, c in messages], **rest}


def test_the_clients_own_stage_stands_alone() -> None:
    assert stage_keys(chat(("system", "x"), ("user", "y")), "text2sql/revise") == (
        "text2sql/revise",
    )


@pytest.mark.parametrize(
    ("rest", "mode"),
    [
        ({"tools": [{"function": {"name": "f"}}]}, "+tools"),
        ({"response_format": {"type": "json_schema"}}, "+json"),
        ({"reasoning_effort": "high"}, "+reasoning"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "+reasoning"),
    ],
)
def test_modes_that_change_the_length_are_in_the_key(rest: dict[str, Any], mode: str) -> None:
    assert stage_keys(chat(("user", "y"), **rest), "s") == ("s" + mode,)


def test_without_a_name_the_system_message_is_the_stage_its_opening_the_wider_one() -> None:
    opening = "You are a helpful clerk. " * 20
    monday, tuesday = (
        stage_keys(chat(("system", opening + day), ("user", "y"))) for day in ("Monday", "Tuesday")
    )
    assert monday[0] != tuesday[0]
    assert monday[1:] == tuesday[1:]
    assert monday[-1] == NO_STAGE


def test_without_a_system_message_the_prompts_opening_is_the_stage() -> None:
    template = "Given the schema below, answer the question. " * 10
    first, second = (stage_keys({"prompt": template + q}) for q in ("one", "two"))
    assert first == second
    assert len(first) == 2


def test_the_last_user_message_is_the_text() -> None:
    assert text_of(
        chat(("system", "s"), ("user", "first"), ("assistant", "a"), ("user", LONG))
    ) == (LONG)


def test_a_short_last_message_brings_the_one_before() -> None:
    assert text_of(chat(("user", LONG), ("assistant", "a"), ("user", "go on"))) == f"{LONG}\ngo on"


def test_a_tools_result_tells_one_turn_from_the_next() -> None:
    body = chat(("user", LONG), ("assistant", None), ("tool", "42 rows"))
    assert text_of(body) == f"{LONG}\n42 rows"
    assert stage_keys(body, "s") == ("s+result",)


def test_content_in_parts_is_read() -> None:
    parts = [{"type": "image_url"}, {"type": "text", "text": LONG}]
    assert text_of(chat(("user", parts))) == LONG


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "no"},
        {"messages": []},
        {"messages": [1, None, {"role": "user"}]},
        {"messages": [{"role": "user", "content": [1, {"text": 2}]}], "tools": [1, {}]},
        {"prompt": [[1, 2, 3]]},
        {"prompt": []},
        {"prompt": 7, "max_tokens": "many", "n": True, "response_format": "json"},
    ],
)
def test_whatever_the_body_holds_there_is_a_query(body: dict[str, Any]) -> None:
    query = query_of(body, model="m", prompt_tokens=3)
    assert query.n == 1
    assert query.stages


def test_limits_and_choices_are_read() -> None:
    body = {"prompt": "x", "max_tokens": 9, "n": 2, "best_of": 5}
    query = query_of(body, model="m", prompt_tokens=3, hint_tokens=70)
    assert (query.max_tokens, query.n, query.hint_tokens) == (9, 5, 70)
