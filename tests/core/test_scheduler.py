"""Scheduler: stories of single calls, and what holds whatever happens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import QueueLimits
from tests.core.scripts import MIXED_POLICIES, Move, Player, limits, scripts


@given(st.sampled_from(MIXED_POLICIES), limits, scripts())
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_books_balance(
    policy: str, limits: QueueLimits, script: list[Move]
) -> None:
    player = Player(policy, limits)

    player.play(script)
    player.wind_up()
