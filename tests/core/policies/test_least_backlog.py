"""least_backlog: calls bound or running, counted."""

from gateway.core.load import BackendLoad
from gateway.core.policies.least_backlog import LeastBacklog
from tests.builders import a_backend, a_call, a_profile


def test_bound_and_running_calls_count_alike_and_speed_does_not() -> None:
    slow, fast = (
        BackendLoad(a_backend("a", profile=a_profile(slowness=9))),
        BackendLoad(a_backend()),
    )
    for number in range(3):
        call = a_call(f"r{number}")
        fast.bind(call)
        if number:
            fast.start(call)
        else:
            fast.bound.push(call)

    assert LeastBacklog().scores(a_call(), [slow, fast], turn=0) == [0.0, 3.0]
