"""The scripts of this folder, short: that they run, and what holds however slow the machine is."""

import argparse
from pathlib import Path

import pytest

from tests.chaos.cancelled import cancelled
from tests.chaos.killed import killed
from tests.chaos.overload import retry_after_errors
from tests.e2e.processes import free_ports

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"


def options(**given: float) -> argparse.Namespace:
    """What a command line would say."""
    return argparse.Namespace(port=free_ports(9), seed=1, **given)


async def test_clients_that_leave_leave_nothing(tmp_path: Path) -> None:
    figure = await cancelled(tmp_path, options(calls=300))

    assert figure.wrong == []


async def test_a_killed_engine_fails_no_new_call(tmp_path: Path) -> None:
    figure = await killed(tmp_path, options(seconds=2.0))

    assert [wrong for wrong in figure.wrong if "errors" in wrong or "failures" in wrong] == []


def test_a_refusal_is_judged_by_when_as_many_had_left_the_queue(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    lines = [
        '{"at":0,"type":"Arrived","request_id":"a"}',
        '{"at":0,"type":"Arrived","request_id":"b"}',
        '{"at":1,"type":"Arrived","request_id":"c"}',
        '{"at":1,"type":"Reject","command":{"request_id":"c","retry_after_s":3.0}}',
        '{"at":2,"type":"Start","command":{"request_id":"a"}}',
        '{"at":3,"type":"Start","command":{"request_id":"b"}}',
    ]
    log.write_text("\n".join(lines))

    assert retry_after_errors(log) == [0.5]  # three seconds were told, two were true
