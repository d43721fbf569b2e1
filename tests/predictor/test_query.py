"""What is asked of the predictor."""

from dataclasses import replace

import pytest

from gateway.predictor.query import PromptQuery


def test_the_same_call_with_another_prompt_length_differs_in_nothing_else() -> None:
    query = PromptQuery(
        model="m",
        prompt_tokens=0,
        stages=("narrow", "-"),
        text="Why?",
        max_tokens=9,
        n=2,
        hint_tokens=5,
    )

    longer = query.with_prompt_tokens(70)

    assert longer == replace(query, prompt_tokens=70)
    assert query.prompt_tokens == 0
    assert query.without_text("wide") == replace(query, stages=("wide",), text="")


def test_a_call_has_a_choice_and_a_stage() -> None:
    with pytest.raises(ValueError, match="n must be"):
        PromptQuery(model="m", prompt_tokens=0, n=0)
    with pytest.raises(ValueError, match="stage"):
        PromptQuery(model="m", prompt_tokens=0, stages=())
