"""Workflows: stages, deadlines, budgets, what is held and what ends."""

import pytest

from gateway.core.events import Arrived
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.workflow import Workflows
from tests.builders import a_backend, a_request, a_workflow


def test_the_scheduler_uses_the_workflows_it_is_given_though_none_is_open_yet() -> None:
    workflows = Workflows(idle_timeout_s=7.0)

    scheduler = Scheduler([a_backend()], policy_from_name("hexsage"), workflows=workflows)

    assert scheduler.workflows is workflows


def test_a_call_knows_how_much_of_its_workflow_is_still_to_come() -> None:
    workflows = Workflows()
    workflows.templates.learn("t", [("plan", 2.0), ("write", 5.0), ("check", 1.0)])
    scheduler = Scheduler([a_backend()], policy_from_name("hexsage"), workflows=workflows)
    ref = a_workflow(template="t", stage="write")

    scheduler.handle(Arrived(a_request("r", workflow=ref)), now=0.0)

    call = scheduler.calls["r"]
    assert call.remaining_s == pytest.approx(call.reference_s + 1.0)
    assert call.total_s == pytest.approx(8.0)


def test_a_call_of_an_unknown_workflow_counts_for_itself() -> None:
    scheduler = Scheduler([a_backend()], policy_from_name("hexsage"))

    scheduler.handle(Arrived(a_request("r", workflow=a_workflow())), now=0.0)

    call = scheduler.calls["r"]
    assert call.remaining_s == call.total_s == call.reference_s > 0
