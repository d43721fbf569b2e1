"""Word-level token ids are the tokenizer's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.predictor import tokens
from gateway.predictor.embedder import DATA
from gateway.predictor.tokens import WordIds

PATH = DATA / "tokenizer.json"
EXACT = Tokenizer.from_file(str(PATH))
WORDS = WordIds(PATH)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 2026-11-30; f(x_1) = 3.5e-7?",
        "snake_case, CamelCase, e-mail: a.b@c.org https://x.y/z?q=1#top",
        "日本語のテキスト and 中文, mixed",
        "Grüße aus Köln — “quoted” … §5",
        "SELECT name\nFROM customers\tWHERE id<>7;",
        "",
    ],
)
def test_ids_are_those_of_the_tokenizer(text: str) -> None:
    assert WORDS.of(text).tolist() == EXACT.encode(text, add_special_tokens=False).ids


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80))
def test_any_ascii_text_has_the_tokenizers_ids(text: str) -> None:
    assert WORDS.of(text).tolist() == EXACT.encode(text, add_special_tokens=False).ids


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_WORDS", 64)
    words = WordIds(PATH)
    for number in range(500):
        first, again = words.of(f"word{number}"), words.of(f"word{number}")
        assert first.tolist() == again.tolist()
    assert len(words._known) <= 64
