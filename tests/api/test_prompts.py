"""Token estimates are cheap and honest; shared beginnings are found, and only those."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.prompts import (
    MAX_SEGMENTS,
    MEDIA_TOKENS,
    MESSAGE_TOKENS,
    SeenPrefixes,
    Sketch,
    TokenRatios,
    estimate_tokens,
    read_prompt,
    sketch_of,
)

Json = dict[str, object]


def said(*texts: str, role: str = "user") -> Json:
    return {"messages": [{"role": role, "content": text} for text in texts]}


def sketch(body: Json, model: str = "m1") -> Sketch:
    return sketch_of(model, read_prompt(body))


def tokens(body: Json, bytes_per_token: float = 4.0) -> int:
    return estimate_tokens(sketch(body), bytes_per_token)


def shared(seen: SeenPrefixes, body: Json) -> int:
    """Return how many tokens of a prompt are known from earlier ones."""
    return sum(tokens for _, tokens in seen.segments(sketch(body), 4.0))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(said("x" * 4000), 1000 + MESSAGE_TOKENS + 1, id="English"),
        pytest.param(said("漢" * 4000), 3000 + MESSAGE_TOKENS + 1, id="by bytes, not characters"),
        pytest.param({"prompt": [1] * 500}, 500, id="ids are exact"),
        pytest.param({"prompt": [[1, 2], [3]]}, 3, id="batches of ids"),
        pytest.param({"prompt": ["a" * 40, "b" * 40]}, 20, id="batches of texts"),
        pytest.param({"prompt": ""}, 1, id="nothing is one token"),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "data:" + "A" * 2_000_000}}
                        ],
                    }
                ]
            },
            MEDIA_TOKENS + MESSAGE_TOKENS + 1,
            id="a picture is no text",
        ),
    ],
)
def test_estimates(body: Json, expected: int) -> None:
    """Case 188."""
    assert tokens(body) == expected


def test_tools_and_calls_count_as_text() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 1000}}
    call = {"role": "assistant", "tool_calls": [{"function": {"arguments": "y" * 1000}}]}

    assert tokens({**said("hi"), "tools": [tool] * 20}) > 5000
    assert tokens({"messages": [call]}) > 250


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": None}, {"messages": [None, "x", 5, {"content": {"a": 1}}]}, {"prompt": 5}],
)
def test_odd_prompts_are_small_prompts(body: Json) -> None:
    assert tokens(body) < 20


def test_the_ratio_follows_what_engines_report() -> None:
    ratios = TokenRatios()
    prompt = sketch({"prompt": "x" * 3000})
    for _ in range(100):
        ratios.learn("m1", prompt, 1000)

    assert ratios.of("m1") == pytest.approx(3.0, rel=0.01)
    assert ratios.of("m2") == 4.0


def test_absurd_reports_do_not_break_the_ratio() -> None:
    ratios = TokenRatios()
    for reported in (0, 1, 10**9):
        ratios.learn("m1", sketch({"prompt": "x" * 3000}), reported)

    assert 0.5 <= ratios.of("m1") <= 16


def test_ratios_are_bounded() -> None:
    ratios = TokenRatios()
    for number in range(1000):
        ratios.learn(f"m{number}", sketch({"prompt": "x" * 3000}), 1000)

    assert ratios.of("m0") == 4.0
    assert ratios.of("m999") != 4.0


def test_a_first_prompt_shares_nothing_and_its_repeat_almost_everything() -> None:
    seen = SeenPrefixes()
    body = said("x" * 40_000)

    assert shared(seen, body) == 0
    assert shared(seen, body) == (40_000 + len("user")) // 4


def test_a_shared_system_message_is_found_to_its_end() -> None:
    seen = SeenPrefixes()
    system = {"role": "system", "content": "s" * 4000}
    bodies: list[Json] = [
        {"messages": [system, {"role": "user", "content": text * 1000}]} for text in "ab"
    ]

    assert shared(seen, bodies[0]) == 0
    assert shared(seen, bodies[1]) == (4000 + len("system")) // 4


def test_a_shared_template_inside_one_message_is_found_to_within_a_third() -> None:
    seen = SeenPrefixes()
    shared(seen, said("t" * 20_000 + "a" * 2000))

    assert 20_000 / 4 * 2 / 3 - 1 <= shared(seen, said("t" * 20_000 + "b" * 2000)) <= 20_000 / 4


def test_a_conversation_shares_its_earlier_turns() -> None:
    seen = SeenPrefixes()
    first, second = said("q" * 2000), said("q" * 2000, "a" * 2000, "r" * 2000)
    shared(seen, first)

    assert shared(seen, second) == (2000 + len("user")) // 4


def test_models_share_nothing() -> None:
    seen = SeenPrefixes()
    body = said("x" * 4000)
    seen.segments(sketch(body, "m1"), 4.0)

    assert seen.segments(sketch(body, "m2"), 4.0) == ()


@given(st.lists(st.text(max_size=3000), max_size=40), st.floats(0.5, 16))
def test_segments_fit_the_prompt_and_their_number_is_bounded(
    texts: list[str], bytes_per_token: float
) -> None:
    seen = SeenPrefixes()
    prompt = sketch(said(*texts))
    seen.segments(prompt, bytes_per_token)
    segments = seen.segments(prompt, bytes_per_token)

    assert len(segments) <= MAX_SEGMENTS
    assert all(count > 0 for _, count in segments) or bytes_per_token > 10
    assert sum(count for _, count in segments) <= estimate_tokens(prompt, bytes_per_token)
    assert all(0 <= key < 2**64 for key, _ in segments)
