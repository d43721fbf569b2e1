"""The tuner as the gateway wires it: the policy in force is what it starts from and changes."""

from dataclasses import asdict

import pytest

from gateway.config.scheduling import PolicyEntry, TunerEntry
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.sim.experiment import fleet
from gateway.sim.recorder import Recorder
from gateway.tuning import live_tuner
from tests.virtual_time import VirtualClock, run_in_virtual_time


@pytest.mark.parametrize("policy", ["hexgen", "round_robin+fcfs"])
def test_without_traffic_the_policy_stays(policy: str) -> None:
    changes: list[dict[str, object]] = []

    async def run() -> str:
        scheduler = Scheduler(fleet(("A100", "L40S")), policy_from_name(policy))
        tuner = live_tuner(
            TunerEntry(),
            scheduler,
            Recorder(),
            VirtualClock(),
            lambda: PolicyEntry(name=policy),
            changes.append,
        )
        return (await tuner.tune_once()).outcome

    assert run_in_virtual_time(run()).startswith("nothing to tune")
    assert changes == []


def test_a_change_names_every_knob_as_the_configuration_does() -> None:
    settings = PolicyEntry(name="hexgen", alpha=0.2).settings

    again = PolicyEntry.model_validate({"name": "hexgen", **asdict(settings)})

    assert again.settings == settings
