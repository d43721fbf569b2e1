"""Prompts that come word for word: when they are answered from memory, and how often not."""

from itertools import pairwise

from gateway.predictor.prediction import Prediction
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import PromptQuery
from gateway.predictor.repeats import (
    DOUBLINGS,
    FAMILIAR_AFTER,
    MAX_PROMPTS,
    ONE_IN,
    Repeats,
    key_of,
)
from tests.predictor.builders import a_query


def a_prediction(key: int) -> Prediction:
    prediction = LengthPredictor(PredictorSettings(is_semantic=False)).predict_quick(a_query())
    prediction.ticket.prompt_key = key
    return prediction


def use(repeats: Repeats, key: int) -> bool:
    """Predict once; return whether it was done in full."""
    if repeats.echo(key) is not None:
        return False
    repeats.remember(a_prediction(key))
    return True


def test_a_familiar_prompt_is_predicted_in_full_ever_more_rarely_but_never_not_at_all() -> None:
    repeats = Repeats()

    in_full = [use(repeats, 7) for _ in range(1000)]

    assert in_full[:FAMILIAR_AFTER] == [True] * FAMILIAR_AFTER
    times = [number for number, full in enumerate(in_full) if full][FAMILIAR_AFTER - 1 :]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:5] == [ONE_IN, 2 * ONE_IN, 4 * ONE_IN, 8 * ONE_IN, 8 * ONE_IN]
    assert set(gaps[5:]) == {ONE_IN << DOUBLINGS}


def test_while_one_is_asked_anew_others_get_the_echo_and_so_they_do_if_no_answer_comes() -> None:
    repeats = Repeats()
    for _ in range(FAMILIAR_AFTER + ONE_IN - 1):
        use(repeats, 7)

    in_full = [repeats.echo(7) is None for _ in range(3 * ONE_IN)]

    assert in_full == ([True] + [False] * (ONE_IN - 1)) * 3


def test_uses_count_that_nobody_answered_in_time() -> None:
    repeats = Repeats()
    for _ in range(FAMILIAR_AFTER - 1):
        assert repeats.echo(7) is None

    use(repeats, 7)

    assert repeats.echo(7) is not None


def test_an_echo_is_the_latest_full_forecast() -> None:
    repeats = Repeats()
    for _ in range(FAMILIAR_AFTER):
        use(repeats, 7)
    latest = a_prediction(7)
    repeats.remember(latest)

    echo = repeats.echo(7)

    assert echo is not None
    assert echo.output == latest.output
    assert echo.ticket.is_echo
    assert not latest.ticket.is_echo


def test_the_least_recently_used_prompt_goes_first() -> None:
    repeats = Repeats()
    for key in range(1, MAX_PROMPTS + 1):
        for _ in range(FAMILIAR_AFTER):
            use(repeats, key)
    assert repeats.echo(1) is not None
    repeats.echo(MAX_PROMPTS + 1)

    assert repeats.echo(1) is not None
    assert repeats.echo(2) is None


def test_what_changes_the_forecast_changes_the_key() -> None:
    def key(**said: object) -> int:
        known: dict[str, object] = {"model": "m", "prompt_tokens": 9, "text": "a question"}
        return key_of(PromptQuery(**{**known, **said}))  # type: ignore[arg-type]

    assert key() == key(prompt_tokens=10)  # which is an estimate, and the same text
    others = [
        key(model="n"),
        key(text="another"),
        key(stages=("s",)),
        key(max_tokens=5),
        key(n=2),
        key(hint_tokens=3),
    ]
    assert len({key(), *others}) == 7
    assert key(text="") == 0
