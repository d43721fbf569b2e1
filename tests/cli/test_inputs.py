"""What the command line says, and how it is told that it makes no sense."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli import inputs
from gateway.cli.inputs import UsageError, add_gpus, failure_of, fleet_of, misprofile_of, policy_of
from gateway.core.policies import PolicySettings
from gateway.core.profiles import built_in, roofline
from gateway.sim.experiment import Workload
from gateway.sim.simulator import FaultKind
from gateway.sim.trace import SINGLE
from tests.tuner.builders import a_trace

FLEET = fleet_of("A100,A100,L40S")


def test_gpus_become_backends_with_numbered_names() -> None:
    assert [backend.id for backend in FLEET] == ["a100-0", "a100-1", "l40s-0"]
    assert FLEET[2].profile == built_in("L40S")


def test_a_gpu_more_takes_the_next_number() -> None:
    assert [backend.id for backend in add_gpus(FLEET, ["A100"])][-1] == "a100-2"


def test_a_model_size_asks_the_data_sheets() -> None:
    [backend] = fleet_of("H200", 8, 16)

    assert backend.profile == roofline("H200", 8, 16)


def test_a_fleet_can_be_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text("backends: [{name: x, url: 'http://h:1', gpu: L40S, max_in_flight: 3}]")

    [backend] = fleet_of(str(path))

    assert (backend.id, backend.profile.name, backend.max_in_flight) == ("x", "L40S", 3)


def test_a_policy_can_bring_its_settings() -> None:
    policy = policy_of("hexsage:alpha=0.3:skip=2")

    assert policy.name == "hexsage"
    assert policy.label == "hexsage:alpha=0.3:skip=2"
    assert policy.settings == PolicySettings(alpha=0.3, skip=2)


def test_an_outage_is_a_failure_and_a_recovery() -> None:
    failed, recovered = failure_of("a100-0@300:600", FLEET)

    assert (failed.at, failed.kind, failed.backend_id) == (300, FaultKind.FAIL, "a100-0")
    assert (recovered.at, recovered.kind) == (600, FaultKind.RECOVER)


def test_a_wrong_belief_has_a_factor() -> None:
    assert misprofile_of("l40s-0=0.5", FLEET) == ("l40s-0", 0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a100-0", "write NAME@FROM:TO"),
        ("a100-0@5", "write NAME@FROM:TO"),
        ("a100-0@600:300", "write NAME@FROM:TO"),
        ("a100-0@0:inf", "write NAME@FROM:TO"),
        ("b@1:2", "there is no backend 'b' \\(there are a100-0, a100-1, l40s-0\\)"),
    ],
)
def test_outages_that_make_no_sense_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        failure_of(text, FLEET)


@pytest.mark.parametrize("text", ["a100-0", "a100-0=", "a100-0=0", "a100-0=x", "a100-0=-2"])
def test_beliefs_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write NAME=FACTOR"):
        misprofile_of(text, FLEET)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("best", "no policy 'best'"),
        ("hexgen:alpha", "could not convert"),
        ("hexgen:alpha=2", "alpha must lie in"),
        ("hexgen:speed=2", "there is no setting 'speed'"),
        ("hexgen:score=best", "not a valid Score"),
    ],
)
def test_policies_that_make_no_sense_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        policy_of(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (" , ", "the fleet is empty"),
        ("A100,B200", "no built-in profile for GPU 'B200'"),
        ("H200", "the model's size must be given"),
        ("nowhere.yaml", "cannot be read"),
    ],
)
def test_fleets_that_make_no_sense_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        fleet_of(text)


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        fleet_of("L4", 70, 16)


def test_a_configuration_without_backends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("policy: {name: hexsage}")

    with pytest.raises(UsageError, match="no backends"):
        fleet_of(str(path))


@pytest.mark.parametrize("content", ["", "[1]"])
def test_traces_that_cannot_be_read_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)

    with pytest.raises(UsageError, match=r"trace\.json"):
        inputs.load_trace(path)


def test_deadlines_come_from_the_trace_or_from_its_unloaded_length() -> None:
    with_deadlines = Workload.split("t", a_trace())
    bare = Workload.split("t", [replace(w, deadline_s=None) for w in a_trace()])
    singles = Workload.split("t", [replace(w, deadline_s=None) for w in a_trace(name=SINGLE)])

    assert inputs.deadline_s_of(with_deadlines, FLEET) is None
    assert inputs.deadline_s_of(bare, FLEET) == pytest.approx(3 * bare.unloaded_s(FLEET))
    assert inputs.deadline_s_of(singles, FLEET) is None
