"""Asynchronous tests run on asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"
