"""The tables of states: three questions to the tables themselves, and the errors."""

from collections.abc import Mapping
from enum import StrEnum

import pytest

from gateway.core.stages import (
    NEXT,
    WORKFLOW_NEXT,
    IllegalTransition,
    StageEvent,
    StageState,
    WorkflowEvent,
    WorkflowState,
    advance,
    end,
)

Table = Mapping[StrEnum, Mapping[StrEnum, StrEnum]]
TABLES = [
    pytest.param(NEXT, {StageState.BLOCKED, StageState.READY}, StageState, id="stages"),
    pytest.param(WORKFLOW_NEXT, {WorkflowState.OPEN}, WorkflowState, id="workflows"),
]


def reachable(table: Table, first: set[StrEnum]) -> set[StrEnum]:
    """Every state that can follow, at any distance."""
    seen = set(first)
    todo = list(first)
    while todo:
        for state in table[todo.pop()].values():
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return seen


@pytest.mark.parametrize(("table", "first", "states"), TABLES)
def test_every_state_has_its_row_and_can_be_reached(
    table: Table, first: set[StrEnum], states: type[StrEnum]
) -> None:
    assert set(table) == set(states)
    assert reachable(table, first) == set(states)


@pytest.mark.parametrize(("table", "first", "states"), TABLES)
def test_every_state_can_end(table: Table, first: set[StrEnum], states: type[StrEnum]) -> None:
    del first
    final = {state for state in states if not table[state]}
    assert final
    assert all(reachable(table, {state}) & final for state in states)


def test_whatever_is_open_can_be_cancelled() -> None:
    for row in NEXT.values():
        if row:
            assert row[StageEvent.CANCELLED] is StageState.CANCELLED


def test_a_repeated_stage_goes_round() -> None:
    state = StageState.READY
    for _ in range(3):
        state = advance(state, StageEvent.CALLED)
        state = advance(state, StageEvent.ANSWERED)

    assert advance(state, StageEvent.CLOSED) is StageState.DONE


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (StageState.BLOCKED, StageEvent.CALLED),
        (StageState.READY, StageEvent.ANSWERED),
        (StageState.RUNNING, StageEvent.CLOSED),
        (StageState.DONE, StageEvent.CALLED),
        (StageState.CANCELLED, StageEvent.CANCELLED),
    ],
)
def test_what_the_table_does_not_know_cannot_happen(state: StageState, event: StageEvent) -> None:
    with pytest.raises(IllegalTransition, match=f"a {state} stage cannot be {event}"):
        advance(state, event)


def test_a_workflow_ends_once() -> None:
    state = end(WorkflowState.OPEN, WorkflowEvent.BROKE)

    assert state is WorkflowState.FAILED
    with pytest.raises(IllegalTransition):
        end(state, WorkflowEvent.CLOSED)
