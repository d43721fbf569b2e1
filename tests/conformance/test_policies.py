"""Every policy, and combinations of their parts, by one contract."""

import pickle
from math import isfinite, isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import QueueLimits
from gateway.core.commands import Start
from gateway.core.events import Arrived, Finished
from gateway.core.load import BackendLoad
from gateway.core.policies import (
    DEFAULT_POLICY,
    DISPATCHES,
    ORDERS,
    POLICIES,
    PolicySettings,
    policy_from_name,
)
from gateway.core.policies.alpha_balanced import Score
from gateway.core.policies.base import Binding
from gateway.core.scheduler import Scheduler
from gateway.core.types import RequestId
from tests.builders import a_backend, a_call, a_profile, a_request
from tests.core.scripts import Move, Player, limits, scripts

COMBINED = tuple(f"{dispatch}+{order}" for dispatch in DISPATCHES for order in ORDERS)
NAMES = tuple(dict.fromkeys((*POLICIES, *COMBINED)))


@st.composite
def fleets(draw: st.DrawFn) -> list[BackendLoad]:
    """Backends of several speeds with several calls each."""
    loads = []
    for number in range(draw(st.integers(1, 6))):
        profile = a_profile(slowness=draw(st.sampled_from([0.5, 1.0, 3.0])))
        load = BackendLoad(a_backend(f"b{number}", profile=profile, weight=draw(weights)))
        for running in range(draw(st.integers(0, 3))):
            call = a_call(request=a_request(f"r{number}-{running}", prompt_tokens=draw(sizes)))
            load.bind(call)
            load.start(call)
        loads.append(load)
    return loads


weights = st.sampled_from([1.0, 2.0])
sizes = st.integers(1, 5000)


@pytest.mark.parametrize("dispatch", DISPATCHES)
@given(loads=fleets(), turn=st.integers(0, 1 << 40), prompt_tokens=sizes)
@settings(max_examples=30, deadline=None)
def test_every_dispatch_scores_every_backend(
    dispatch: str, loads: list[BackendLoad], turn: int, prompt_tokens: int
) -> None:
    for score in Score if dispatch == "alpha_balanced" else [Score.BOUNDED]:
        part = DISPATCHES[dispatch](PolicySettings(score=score))
        call = a_call(request=a_request(prompt_tokens=prompt_tokens))
        before = [(load.backlog_s, load.reserved_tokens, load.pending) for load in loads]

        scores = part.scores(call, loads, turn)

        assert len(scores) == len(loads)
        assert not any(isnan(score) for score in scores)
        assert any(isfinite(score) for score in scores)
        assert part.scores(call, loads, turn) == scores
        assert [(load.backlog_s, load.reserved_tokens, load.pending) for load in loads] == before


@pytest.mark.parametrize("order", ORDERS)
@given(
    prompt_tokens=sizes,
    answer_tokens=st.integers(1, 5000),
    deadline_at=st.none() | st.integers(-10, 10_000),
)
@settings(max_examples=30, deadline=None)
def test_every_order_gives_every_call_a_number(
    order: str, prompt_tokens: int, answer_tokens: int, deadline_at: int | None
) -> None:
    call = a_call(
        request=a_request(
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            deadline_at=None if deadline_at is None else float(deadline_at),
        )
    )
    part = ORDERS[order](PolicySettings())

    assert isfinite(part.key(call))
    assert part.key(call) == part.key(call)


@pytest.mark.parametrize("name", NAMES)
@given(limits=limits, script=scripts(max_size=30))
@settings(max_examples=15, deadline=None)
def test_under_every_policy_the_books_balance(
    name: str, limits: QueueLimits, script: list[Move]
) -> None:
    player = Player(name, limits, policy_changes=False)

    player.play(script)
    player.wind_up()


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_uses_a_lone_idle_backend(name: str) -> None:
    scheduler = Scheduler([a_backend("a")], policy_from_name(name))

    (start,) = scheduler.handle(Arrived(a_request("r")), now=0.0)

    assert isinstance(start, Start)
    assert start.decision.policy == name
    assert start.decision.scores.keys() == {"a"}


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_serves_equal_calls_as_they_came(name: str) -> None:
    scheduler = Scheduler([a_backend("a", max_in_flight=1)], policy_from_name(name))
    for number in range(4):
        scheduler.handle(Arrived(a_request(f"r{number}")), now=float(number))
    order = []
    for number in range(3):
        commands = scheduler.handle(Finished(RequestId(f"r{number}"), 10), now=10.0 + number)
        order += [c.request_id for c in commands if isinstance(c, Start)]

    assert order == ["r1", "r2", "r3"]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_can_be_sent_to_another_process(name: str) -> None:
    policy = policy_from_name(name)

    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(policy_from_name(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_called_as_it_was_asked_for(name: str) -> None:
    assert policy_from_name(name).name == name


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT_POLICY in POLICIES


@pytest.mark.parametrize("name", ["", "hexsag", "edf+edf", "round_robin", "round_robin+", "+edf"])
def test_an_unknown_name_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match="there are round_robin"):
        policy_from_name(name)


@pytest.mark.parametrize(
    "wrong",
    [{"hold": 0.9}, {"hold_idle": 0.0}, {"budget_share": 0.0}, {"skip": -1}, {"alpha": 1.5}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|ratios"):
        policy_from_name("hexsage", PolicySettings(**wrong))  # type: ignore[arg-type] # by name


@pytest.mark.parametrize("name", ["hexgen", "hexsage"])
def test_alpha_reaches_the_policies_that_have_one(name: str) -> None:
    assert policy_from_name(name, PolicySettings(alpha=0.2)).dispatch != (
        policy_from_name(name, PolicySettings(alpha=0.8)).dispatch
    )


def test_only_completion_binds_late_among_the_combined() -> None:
    for name in COMBINED:
        late = policy_from_name(name).binds is Binding.LATE
        assert late == name.startswith("completion+")
