"""The engines under test, started once for all tests, and the gateway in front of them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from gateway.core.profiles import PROFILES
from tests.engines import fleet as fleets
from tests.engines.fleet import Fleet, Recipe, Running
from tests.engines.tiny_model import build
from tests.engines.venvs import Unavailable
from tests.engines.wire import eventually, metric

KEY = "the-engine's-own-key"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
PACED_SPEED = 2.0


MODELS = {"cpu": "tiny", "paced-a": "paced", "paced-b": "paced", "llama": "smollm2"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one engine do for all, where there is little time."""
    parser.addoption(
        "--engine", choices=MODELS, help="start one engine, run the tests that name it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that name another engine, or none."""
    only = config.getoption("--engine")
    if only is None:
        return
    names = {only, MODELS[only]}
    wanted = [item for item in items if names & set(_parameters(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


def _parameters(item: pytest.Item) -> list[str]:
    callspec = getattr(item, "callspec", None)
    return (
        [value for value in callspec.params.values() if isinstance(value, str)] if callspec else []
    )


def recipe(name: str, folder: Path) -> Recipe:
    """Return one of the engines: vLLM on the CPU, two paced replicas of one model, llama.cpp."""
    model = MODELS[name]
    common = ("--scheduling-policy", "priority", "--max-num-queued-reqs")
    if name == "llama":
        return fleets.llamacpp(name, model)
    if name == "cpu":
        return fleets.vllm(
            *(name, model, build(folder / "tiny"), *common, "6", "--max-num-seqs", "2"),
            *("--api-key", KEY, "--enable-request-id-headers"),
        )
    large = folder / "large"
    if not large.exists():  # both replicas have it
        build(large, max_tokens=16_384)
    return fleets.paced(name, model, large, PROFILES["L4"], *common, "12", speed=PACED_SPEED)


@pytest.fixture(scope="session")
def names(pytestconfig: pytest.Config) -> list[str]:
    """The engines that are started."""
    only = pytestconfig.getoption("--engine")
    return [*MODELS] if only is None else [str(only)]


@pytest.fixture(scope="session")
def fleet(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All engines, serving. Tests that end one call `revive` before they use it."""
    folder = tmp_path_factory.mktemp("engines")
    try:
        engines = [recipe(name, folder) for name in names]
    except Unavailable as reason:
        pytest.skip(f"no real engines here: {reason}")
    with fleets.running(engines, folder / "logs") as fleet:
        yield fleet


class Site(NamedTuple):
    """Engines, and a gateway in front of them."""

    fleet: Fleet
    gateway: Running


KINDS: dict[str, dict[str, object]] = {
    "cpu": {"priority_scheduling": True, "api_key_env": "ENGINE_KEY", "max_in_flight": 2},
    "paced-a": {"priority_scheduling": True, "gpu": "L4"},
    "paced-b": {"priority_scheduling": True, "gpu": "L4"},
    "llama": {"kind": "openai", "max_in_flight": 2},
}


SETTINGS: dict[str, object] = {
    "health": {"interval_s": 0.5, "timeout_s": 1.0},
    "timeouts": {"connect_s": 1, "first_token_s": 20, "inter_token_s": 3, "total_s": 120},
}


def entry(name: str, url: str, **more: object) -> dict[str, object]:
    """Return what `backends.yaml` says of one of the engines."""
    return {"name": name, "url": url, **KINDS[name], **more}


class GatewayAt(Protocol):
    """Starts `hexsage serve` in front of backends."""

    def __call__(self, entries: list[dict[str, object]], **settings: object) -> Running:
        """`settings` go before those of `SETTINGS`."""


@pytest.fixture(scope="session")
def gateway_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayAt]:
    """A way to start gateways; all of them end with the tests."""
    with ExitStack() as stack:

        def start(entries: list[dict[str, object]], **settings: object) -> Running:
            folder = tmp_path_factory.mktemp("gateway")
            config = folder / "backends.yaml"
            # JSON is YAML.
            config.write_text(json.dumps({"backends": entries, **SETTINGS, **settings}))
            gateway = Running(fleets.gateway(config, {"ENGINE_KEY": KEY}), folder)
            stack.callback(gateway.end)
            gateway.wait_until_serving("/readyz", 60.0)
            return gateway

        yield start


@pytest.fixture(scope="session")
def gateway(names: list[str], fleet: Fleet, gateway_at: GatewayAt) -> Running:
    """`hexsage serve` in front of all engines."""
    return gateway_at([entry(name, fleet[name].url) for name in names])


@pytest.fixture
def site(names: list[str], fleet: Fleet, gateway: Running) -> Site:
    """All engines alive, and a gateway that knows it."""
    fleet.revive()
    eventually(lambda: metric(gateway.url, "hexsage_backend_up") == len(names), 10.0)
    return Site(fleet, gateway)
