"""Why an answer was late."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.telemetry.lateness import Cause, cause_of
from tests.telemetry.test_counters import a_settle

# Arrived at 10, started at 10.5 for a predicted 3 s and 25 tokens, ended at 14 after 20.
SETTLED = a_settle(deadline_at=13.8)


@pytest.mark.parametrize(
    ("deadline_at", "changes", "cause"),
    [
        pytest.param(None, {}, None, id="no deadline"),
        pytest.param(14.0, {}, None, id="in time"),
        pytest.param(13.8, {}, Cause.QUEUE, id="half a second of waiting is what is missing"),
        pytest.param(13.8, {"started_at": None}, Cause.QUEUE, id="never started"),
        pytest.param(13.0, {"output_tokens": 38}, Cause.LENGTH, id="half as long again"),
        pytest.param(13.0, {"predicted_s": 2.0}, Cause.BACKEND, id="half as slow again"),
        pytest.param(13.0, {}, Cause.DEADLINE, id="as predicted, and too late all the same"),
        pytest.param(13.0, {"predicted_s": None}, Cause.DEADLINE, id="nothing was predicted"),
    ],
)
def test_a_late_answer_has_one_cause(
    deadline_at: float | None, changes: dict[str, Any], cause: Cause | None
) -> None:
    assert cause_of(replace(SETTLED, deadline_at=deadline_at, **changes)) == cause
