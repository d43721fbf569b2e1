"""Policy: what cannot be."""

import pytest

from gateway.core.policies.base import Binding, Policy
from gateway.core.policies.least_backlog import LeastBacklog
from gateway.core.policies.orders import Fcfs


def test_a_policy_that_binds_late_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="needs a budget"):
        Policy(
            name="x",
            dispatch=LeastBacklog(),
            order=Fcfs(),
            binds=Binding.LATE,
            budget_share=None,
        )
