"""Prompts: counted, cut into shareable pieces; answers: as long as the hash says."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.prompts import (
    FRAME_TOKENS,
    MEDIAN_OUTPUT_TOKENS,
    answer_text,
    natural_output_tokens,
    read_messages,
    read_text,
    read_token_ids,
    text_tokens,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("hello", 2, id="four bytes a token, rounded up"),
        pytest.param("漢字", 2, id="bytes, not characters"),
        pytest.param("x" * 4096, 1024, id="long"),
    ],
)
def test_a_message_is_its_text_and_a_frame(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens
    assert read_messages([("user", text)]).tokens == tokens + FRAME_TOKENS
    assert read_text(text).tokens == max(tokens, 1)


@given(st.lists(st.text(max_size=3000), min_size=1, max_size=4))
def test_the_pieces_are_the_prompt(texts: list[str]) -> None:
    prompt = read_messages([("user", text) for text in texts])

    assert sum(segment.tokens for segment in prompt.prefix) == prompt.tokens
    assert len({segment.key for segment in prompt.prefix}) == len(prompt.prefix)


def shared_tokens(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> int:
    """Tokens of the leading pieces that two prompts have in common."""
    shared = 0
    pairs = zip(read_messages(one).prefix, read_messages(other).prefix, strict=False)
    for mine, theirs in pairs:
        if mine != theirs:
            break
        shared += mine.tokens
    return shared


def test_prompts_share_what_they_begin_with() -> None:
    system = ("system", "s" * 10_000)

    assert shared_tokens([system, ("user", "a")], [system, ("user", "b")]) == 2500 + FRAME_TOKENS
    assert shared_tokens([("user", "a"), system], [("user", "b"), system]) == 0
    assert shared_tokens([("user", "abc")], [("system", "abc")]) == 0


def test_long_messages_share_to_a_kilobyte() -> None:
    common = "c" * 2500

    shared = shared_tokens([("user", common + "x" * 999)], [("user", common + "y" * 999)])

    assert shared == 2048 // 4 + FRAME_TOKENS


def test_token_ids_count_as_they_are() -> None:
    prompt = read_token_ids(list(range(600)))

    assert [segment.tokens for segment in prompt.prefix] == [256, 256, 88]
    assert prompt.prefix[:2] == read_token_ids(list(range(512))).prefix


def test_lengths_are_log_normal_and_fixed_by_prompt_choice_and_seed() -> None:
    prompts = [read_text(f"question {number}") for number in range(1000)]
    lengths = [natural_output_tokens(prompt, 0, 0) for prompt in prompts]

    assert lengths == [natural_output_tokens(prompt, 0, 0) for prompt in prompts]
    assert lengths != [natural_output_tokens(prompt, 1, 0) for prompt in prompts]
    assert lengths != [natural_output_tokens(prompt, 0, 1) for prompt in prompts]
    assert median(lengths) == pytest.approx(MEDIAN_OUTPUT_TOKENS, rel=0.15)
    assert max(lengths) > 8 * MEDIAN_OUTPUT_TOKENS
    assert min(lengths) >= 1


@given(st.integers(0, 100_000), st.lists(st.integers(0, 9000), min_size=3, max_size=3))
def test_an_answer_is_the_same_however_it_is_cut(offset: int, cuts: list[int]) -> None:
    start, middle, end = sorted(cuts)

    parts = answer_text(offset, start, middle) + answer_text(offset, middle, end)

    assert parts == answer_text(offset, start, end)
    assert len(parts.split()) == end - start
