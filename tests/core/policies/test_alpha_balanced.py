"""alpha_balanced: HexGen-Flow's dispatch in its three forms, worked out by hand."""

from collections.abc import Sequence

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies.alpha_balanced import AlphaBalanced, Score
from tests.builders import a_backend, a_call, a_profile, a_request

CALL = a_call(request=a_request(prompt_tokens=100, answer_tokens=10))
"""1 s on the plain test GPU."""


def a_load(
    name: str, *, slowness: float = 1.0, backlog_s: float = 0.0, gpu: str = "test"
) -> BackendLoad:
    """A backend so slow, with so much to do."""
    load = BackendLoad(a_backend(name, profile=a_profile(gpu, slowness=slowness)))
    load.backlog_s = load.assigned_s = backlog_s
    return load


def chosen(policy: AlphaBalanced, loads: Sequence[BackendLoad]) -> str:
    """The backend with the lowest score."""
    scores = policy.scores(CALL, loads, turn=0)
    return loads[min(range(len(loads)), key=scores.__getitem__)].id


FAST_BUT_BUSY = a_load("fast", backlog_s=20.0)
SLOW_BUT_IDLE = a_load("slow", slowness=2.0)


@pytest.mark.parametrize(
    ("alpha", "name"),
    [
        pytest.param(1.0, "fast", id="only speed counts"),
        pytest.param(0.0, "slow", id="only backlog counts"),
        pytest.param(0.5, "slow", id="an idle half-speed backend beats a long queue"),
        pytest.param(0.9, "fast", id="a strong taste for speed waits in line for it"),
    ],
)
def test_alpha_trades_speed_against_backlog(alpha: float, name: str) -> None:
    assert chosen(AlphaBalanced(alpha), [FAST_BUT_BUSY, SLOW_BUT_IDLE]) == name


def test_the_bounded_form() -> None:
    loads = [a_load("a", backlog_s=20.0), a_load("b", slowness=2.0, backlog_s=5.0)]

    scores = AlphaBalanced(0.3, Score.BOUNDED).scores(CALL, loads, turn=0)

    # -(alpha x min t / t - (1 - alpha) x Q / max Q), t = 1 and 2 s, Q = 20 and 5 s
    assert scores == pytest.approx([0.7 * 1 - 0.3 * 1, 0.7 * 0.25 - 0.3 * 0.5])


def test_with_nothing_to_do_anywhere_speed_decides() -> None:
    loads = [a_load("a", slowness=2.0), a_load("b")]

    assert chosen(AlphaBalanced(0.1), loads) == "b"


def test_the_paper_form() -> None:
    loads = [a_load("a", backlog_s=20.0), a_load("b", slowness=2.0, backlog_s=5.0)]

    scores = AlphaBalanced(0.3, Score.PAPER, beta=10.0).scores(CALL, loads, turn=0)

    # -((1 - alpha) x beta / Q - alpha x t)
    assert scores == pytest.approx([0.3 * 1 - 0.7 * 10 / 20, 0.3 * 2 - 0.7 * 10 / 5])


def test_the_paper_form_prefers_an_empty_queue_to_any_other() -> None:
    loads = [a_load("a", backlog_s=0.5), a_load("b", slowness=9.0)]

    assert chosen(AlphaBalanced(0.5, Score.PAPER), loads) == "b"


def test_the_code_form() -> None:
    loads = [
        a_load("a", backlog_s=20.0),
        a_load("b", slowness=2.0, backlog_s=30.0),
        a_load("c", slowness=4.0, backlog_s=30.0, gpu="A6000"),
    ]

    scores = AlphaBalanced(0.3, Score.CODE).scores(CALL, loads, turn=0)

    # -(alpha x t(first) / t - (1 - alpha) x f W / W(first)); f = 0.5 on an A6000
    assert scores == pytest.approx(
        [0.7 * 1 - 0.3 * 1, 0.7 * 1.5 - 0.3 / 2, 0.7 * 0.5 * 1.5 - 0.3 / 4]
    )


def test_the_code_form_gives_the_first_backend_the_first_call() -> None:
    loads = [a_load("a", slowness=9.0), a_load("b")]

    assert chosen(AlphaBalanced(0.5, Score.CODE), loads) == "a"


def test_what_the_code_form_counts_is_never_taken_back() -> None:
    load = a_load("a")
    call = a_call(request=a_request(prompt_tokens=100, answer_tokens=10))
    load.bind(call)
    load.unbind(call)
    assert load.assigned_s == pytest.approx(1.0)

    # Idle again, and yet b with half of it is preferred at alpha = 0.
    assert chosen(AlphaBalanced(0.0, Score.CODE), [load, a_load("b", backlog_s=0.5)]) == "b"


@pytest.mark.parametrize("wrong", [{"alpha": 1.5}, {"alpha": -0.1}, {"alpha": 0.5, "beta": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        AlphaBalanced(**wrong)  # type: ignore[arg-type] # by name
