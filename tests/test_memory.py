"""Memory: policies and learned state are put back, unless somebody has meant otherwise since."""

import json
from pathlib import Path

import pytest

from gateway.config.scheduling import PolicyEntry
from gateway.core.events import Event
from gateway.core.policies import policy_from_name
from gateway.core.policies.base import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId
from gateway.memory import SCHEDULER, Memory
from gateway.state import StateFile
from tests.builders import a_backend

HEXGEN = PolicyEntry(name="hexgen")
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the gateway's own."""
    return "asyncio"


def a_memory(folder: Path, configured: PolicyEntry = HEXGEN) -> tuple[Memory, Scheduler]:
    """One process's."""
    scheduler = Scheduler([a_backend("a")], configured.to_core())
    return Memory(folder, scheduler, configured), scheduler


def restored(folder: Path, configured: PolicyEntry = HEXGEN) -> Scheduler:
    """The scheduler of the next process."""
    memory, scheduler = a_memory(folder, configured)

    def build(changed: dict[str, object]) -> Policy:
        return PolicyEntry.model_validate({**configured.model_dump(), **changed}).to_core()

    def feed(event: Event) -> None:
        scheduler.handle(event, 0.0)

    memory.restore(feed, build)
    return scheduler


async def test_a_policy_changed_at_run_time_is_put_back(tmp_path: Path) -> None:
    memory, _ = a_memory(tmp_path)
    memory.policy_changed({"alpha": 0.25})
    await memory.save()

    policy = restored(tmp_path).placement.policy

    assert getattr(policy.dispatch, "alpha", None) == 0.25


async def test_who_configures_another_policy_means_it(tmp_path: Path) -> None:
    memory, _ = a_memory(tmp_path)
    memory.policy_changed({"alpha": 0.25})
    await memory.save()

    policy = restored(tmp_path, PolicyEntry(name="round_robin+fcfs")).placement.policy

    assert policy == policy_from_name("round_robin+fcfs")


async def test_a_reloaded_policy_wipes_out_what_was_changed(tmp_path: Path) -> None:
    memory, _ = a_memory(tmp_path)
    memory.policy_changed({"alpha": 0.25})
    memory.policy_configured(HEXGEN)
    await memory.save()

    assert restored(tmp_path).placement.policy == HEXGEN.to_core()


async def test_a_saved_policy_that_is_none_any_more_is_ignored(tmp_path: Path) -> None:
    memory, _ = a_memory(tmp_path)
    memory.policy_changed({"alpha": 7})
    await memory.save()

    assert restored(tmp_path).placement.policy == HEXGEN.to_core()


async def test_what_is_known_of_backends_is_there_again(tmp_path: Path) -> None:
    memory, scheduler = a_memory(tmp_path)
    calibration = scheduler.fleet.loads[BackendId("a")].calibration
    for _ in range(100):
        calibration.prefill.add(2.0)
    await memory.save()

    saved = restored(tmp_path).fleet.recalled[BackendId("a")]

    assert saved.prefill == calibration.prefill.saved


async def test_a_file_of_another_kind_is_put_aside_and_all_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StateFile(tmp_path / SCHEDULER).write({"scheduler": {"profiles": 7}})

    assert restored(tmp_path).fleet.recalled == {}

    assert "damaged" in caplog.text
    assert (tmp_path / f"{SCHEDULER}.corrupt").exists()


async def test_a_disk_that_takes_nothing_is_logged_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    memory, _ = a_memory(tmp_path / "file")

    await memory.save()

    assert "could not be saved" in caplog.text


async def test_what_is_kept_holds_numbers_and_names_only(tmp_path: Path) -> None:
    memory, _ = a_memory(tmp_path)
    await memory.save()

    content = json.loads(json.loads((tmp_path / SCHEDULER).read_text())["content"])
    assert set(content) == {"scheduler", "policy"}
