"""Chaos, short: for a while everything goes wrong, and every book is compared."""

from pathlib import Path

import pytest

from tests.chaos.run import chaos
from tests.e2e.processes import free_ports

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"


async def test_everything_goes_wrong_and_nothing_is_lost(tmp_path: Path) -> None:
    figure = await chaos(tmp_path, free_ports(9), seconds=15, rate=12, seed=7)

    assert figure.wrong == []
