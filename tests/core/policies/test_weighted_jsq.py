"""weighted_jsq: the queue times the speed."""

import pytest

from gateway.core.load import BackendLoad
from gateway.core.policies.weighted_jsq import WeightedJsq
from tests.builders import a_backend, a_call, a_profile


def test_a_queue_weighs_as_much_as_the_backend_is_slow() -> None:
    slow, fast = (
        BackendLoad(a_backend("a", profile=a_profile(slowness=3))),
        BackendLoad(a_backend()),
    )
    for number in range(2):
        call = a_call(f"r{number}")
        fast.bind(call)
        fast.start(call)

    # 100 prompt and 10 output tokens take 1 s on the fast one: (2 + 1) x 1 s against (0 + 1) x 3 s.
    assert WeightedJsq().scores(a_call(), [slow, fast], turn=0) == pytest.approx([3.0, 3.0])
