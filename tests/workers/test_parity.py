"""What clients and engines see of a gateway, they see of its workers: the API's tests once more."""

from types import ModuleType

import pytest

from tests.api import (
    test_disconnects,
    test_failures,
    test_first_tries,
    test_garbage,
    test_headers,
    test_limits,
    test_queueing,
    test_streams,
    test_timeouts,
    test_uploads,
    test_workflows,
)
from tests.workers.harness import through_a_worker

MODULES: tuple[ModuleType, ...] = (
    test_disconnects,
    test_failures,
    test_first_tries,
    test_garbage,
    test_headers,
    test_limits,
    test_queueing,
    test_streams,
    test_timeouts,
    test_uploads,
    test_workflows,
)


pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every gateway of these tests asked through a worker."""
    for module in MODULES:
        monkeypatch.setattr(module, "a_gateway", through_a_worker)


for _module in MODULES:
    _prefix = _module.__name__.rpartition(".")[2]
    globals().update(
        {
            f"{_prefix}_{name}": value
            for name, value in vars(_module).items()
            if name.startswith("test_") and getattr(value, "__module__", "") == _module.__name__
        }
    )
