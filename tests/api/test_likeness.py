"""Whatever API a call comes by, its texts are found for estimates."""

import pytest

from gateway.api.likeness import likened
from gateway.api.prompts import estimate_tokens, read_prompt, sketch_of
from gateway.backends.base import Shape
from gateway.predictor.prompt import query_of

TEXT = "x" * 400
TURNS = [{"role": "user", "content": TEXT}]
PARTS = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]


@pytest.mark.parametrize(
    ("shape", "body", "tokens"),
    [
        (Shape.CHOICES, {"messages": TURNS}, 105),
        (Shape.RESPONSE, {"input": TEXT}, 105),
        (Shape.RESPONSE, {"input": PARTS}, 105),
        (Shape.RESPONSE, {"input": TEXT, "instructions": TEXT}, 211),
        (Shape.RESPONSE, {"input": 5}, 5),
        (Shape.MESSAGE, {"messages": TURNS, "system": TEXT}, 211),
        (Shape.MESSAGE, {"messages": TURNS, "system": [{"type": "text", "text": TEXT}]}, 211),
        (Shape.GENERATED, {"inputs": TEXT}, 100),
        (Shape.GENERATED, {"inputs": None, "parameters": []}, 1),
        (Shape.JSON, {"input": TEXT}, 100),
        (Shape.JSON, {"input": [TEXT, TEXT]}, 200),
        (Shape.JSON, {"input": [1, 2, 3]}, 3),
        (Shape.JSON, {"input": [[1, 2], [3]]}, 3),
        (Shape.JSON, {"query": TEXT, "documents": [TEXT, {"text": TEXT}]}, 300),
        (Shape.JSON, {"text_1": TEXT, "text_2": [TEXT]}, 200),
        (Shape.JSON, {"messages": TURNS}, 105),
        (Shape.JSON, {"tokens": list(range(50))}, 50),
        (Shape.ANY, {}, 1),
    ],
)
def test_tokens_are_estimated(shape: Shape, body: dict[str, object], tokens: int) -> None:
    prompt = sketch_of("m1", read_prompt(likened(shape, body)))

    # A role and a frame are a few tokens more.
    assert estimate_tokens(prompt, 4.0) == pytest.approx(tokens, abs=3)


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Shape.RESPONSE, {"input": TEXT, "max_output_tokens": 7}),
        (Shape.MESSAGE, {"messages": TURNS, "max_tokens": 7}),
        (Shape.GENERATED, {"inputs": TEXT, "parameters": {"max_new_tokens": 7}}),
    ],
)
def test_caps_and_texts_are_found_for_predictions(shape: Shape, body: dict[str, object]) -> None:
    query = query_of(likened(shape, body), model="m1", prompt_tokens=1)

    assert (query.max_tokens, query.text) == (7, TEXT)
