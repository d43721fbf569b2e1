"""schemathesis reads our OpenAPI document and looks for a request that is answered with a 5xx."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from tests.e2e.processes import a_fleet

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MAX_EXAMPLES = 8
"""A path, a method and a mode; raise it to look longer."""


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with a_fleet(tmp_path_factory.mktemp("fleet"), "A100-80G", speed=200.0) as url:
        yield url


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_a_server_error(base_url: str, mode: GenerationMode) -> None:
    whole = schemathesis.openapi.from_url(f"{base_url}/openapi.json")
    # What an operator orders is obeyed: a fleet that is drained answers 503.
    schema = whole.exclude(path_regex="^/admin", method=["POST", "PUT", "PATCH", "DELETE"])
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 20

    for operation in operations:

        @settings(
            max_examples=MAX_EXAMPLES,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: Any) -> None:
            # A caller that names the model gets further.
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "m1"
            case.call_and_validate(checks=[not_a_server_error], timeout=20)

        # What has neither parameters nor body can only be asked for in one way.
        with suppress(Unsatisfiable):
            answers()
