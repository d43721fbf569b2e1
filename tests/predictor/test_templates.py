"""What all prompts of a stage share is taken off."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.predictor.templates import MAX_CHARS, Templates

HEAD = "You answer questions about the database below, step by step.\n" * 5 + "Question: "
TAIL = "\nUse only the tables above, and end with the statement alone on a line.\n" * 3


def test_a_template_comes_off_once_it_is_known() -> None:
    templates = Templates()
    texts = [f"{HEAD}{question}{TAIL}" for question in ("who paid", "what sold", "why", "when")]
    assert [templates.strip("s", text) for text in texts][-1] == "when"


def test_no_word_is_cut_in_half() -> None:
    templates = Templates()
    questions = ("what is sold", "what is sent", "what is saved", "what is seen")
    assert [templates.strip("s", HEAD + q) for q in questions][-1] == "seen"


def test_unrelated_prompts_stay_whole() -> None:
    templates = Templates()
    texts = [f"{word} " * 40 + word for word in ("one", "two", "three", "four", "five")]
    assert [templates.strip("-", text) for text in texts] == texts


def test_the_same_prompt_again_and_again_stays_whole() -> None:
    templates = Templates()
    assert {templates.strip("s", HEAD) for _ in range(9)} == {HEAD}


def test_one_odd_prompt_does_not_spoil_a_stage_for_good() -> None:
    templates = Templates()
    templates.strip("s", "something else entirely")
    stripped = [templates.strip("s", f"{HEAD}question {i}") for i in range(100)]
    assert stripped[-1] == "99"


def test_what_is_kept_is_bounded() -> None:
    templates = Templates()
    for number in range(1000):
        templates.strip(f"s{number}", "x" * 10_000)
    assert templates.nbytes <= MAX_CHARS + 300 * 256


@given(st.lists(st.text(max_size=200), min_size=1, max_size=20))
def test_whatever_comes_what_is_left_is_part_of_it(texts: list[str]) -> None:
    templates = Templates()
    for text in texts:
        left = templates.strip("s", HEAD + text)
        assert left in HEAD + text
        assert left
