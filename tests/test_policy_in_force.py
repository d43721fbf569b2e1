"""The policy in force: configured, changed, configured anew."""

from pathlib import Path

import pytest

from gateway.config.scheduling import PolicyEntry
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.memory import Memory
from gateway.policy_in_force import PolicyInForce


def test_changes_are_made_to_what_is_configured_until_something_else_is() -> None:
    policy = PolicyInForce(PolicyEntry(name="hexgen", alpha=0.2), None)
    changed = policy.change({"alpha": 0.9})

    assert changed.name == "hexgen"
    assert policy.entry == PolicyEntry(name="hexgen", alpha=0.9)
    policy.change({"beta": 3.0})
    assert policy.entry == PolicyEntry(name="hexgen", alpha=0.2, beta=3.0)
    policy.configure(PolicyEntry(name="edf"))
    assert policy.entry == PolicyEntry(name="edf")


def test_a_wish_that_is_no_policy_changes_nothing(tmp_path: Path) -> None:
    scheduler = Scheduler([], policy_from_name("edf"))
    memory = Memory(tmp_path, scheduler, PolicyEntry())
    policy = PolicyInForce(PolicyEntry(), memory)

    with pytest.raises(ValueError, match="alpha"):
        policy.change({"alpha": 7})
    assert policy.entry == PolicyEntry()
