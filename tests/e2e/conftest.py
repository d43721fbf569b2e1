"""One fleet for all clients: two emulated engines and a gateway, in processes of their own."""

from collections.abc import Iterator

import pytest

from tests.e2e.processes import a_fleet


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fleet")
    settings = "models: {gpt-x: {target: m1}}"
    with a_fleet(folder, "A100-80G", "L40S", settings=settings) as url:
        yield url
