"""What holds for every workload."""

from random import Random

import pytest

from loadgen.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_workflows(name: str) -> None:
    draw = WORKLOADS[name]

    assert draw(Random(1), 20) == draw(Random(1), 20)
    assert draw(Random(1), 20) != draw(Random(2), 20)
    assert len(draw(Random(1), 20)) == 20
