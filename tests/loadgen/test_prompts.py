"""Tests of loadgen.prompts."""

import pytest

from loadgen.prompts import BYTES_PER_TOKEN, FRAME_TOKENS, Piece, conversation, messages, pieces_of


def estimate(chat: list[dict[str, str]]) -> float:
    return sum(
        len(message["content"].encode()) / BYTES_PER_TOKEN + FRAME_TOKENS for message in chat
    )


def a_prompt(
    call_id: str, prompt_tokens: int = 900, template_tokens: int = 300
) -> tuple[Piece, ...]:
    return pieces_of(
        template="summarise",
        template_tokens=template_tokens,
        prompt_tokens=prompt_tokens,
        call_id=call_id,
        is_shared=True,
    )


@pytest.mark.parametrize(("prompt", "template"), [(900, 300), (14_000, 9158), (60, 0), (31_000, 5)])
def test_a_prompt_has_as_many_tokens_as_asked_for(prompt: int, template: int) -> None:
    chat = messages(a_prompt("w1-1", prompt, template), "run")

    assert estimate(chat) == pytest.approx(prompt, abs=1)


def test_calls_of_a_template_share_the_system_message_and_nothing_else() -> None:
    first = messages(a_prompt("w1-1"), "run")
    second = messages(a_prompt("w2-7"), "run")

    assert [message["role"] for message in first] == ["system", "user"]
    assert first[0] == second[0]
    assert first[1]["content"][:16] != second[1]["content"][:16]


def test_another_run_shares_templates_but_not_what_is_private() -> None:
    first, second = messages(a_prompt("w1-1"), "run-1"), messages(a_prompt("w1-1"), "run-2")

    assert first[0] == second[0]
    assert first[1]["content"][:16] != second[1]["content"][:16]


def test_the_same_run_has_the_same_text() -> None:
    assert messages(a_prompt("w1-1"), "run") == messages(a_prompt("w1-1"), "run")


def test_a_template_only_one_workflow_uses_is_private_to_the_run() -> None:
    own = pieces_of(
        template="mine", template_tokens=50, prompt_tokens=90, call_id="w1-1", is_shared=False
    )

    assert messages(own, "run-1")[0] != messages(own, "run-2")[0]


def test_without_a_template_everything_is_the_users() -> None:
    alone = pieces_of(
        template=None, template_tokens=0, prompt_tokens=90, call_id="w1-1", is_shared=False
    )

    assert [message["role"] for message in messages(alone, "run")] == ["user"]


def test_a_conversation_repeats_its_messages_word_for_word_and_takes_turns() -> None:
    first = messages(conversation("session", (200,), is_shared=False), "run")
    second = messages(conversation("session", (200, 260, 500), is_shared=False), "run")

    assert second[:1] == first
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert estimate(second) == pytest.approx(500, abs=3)
