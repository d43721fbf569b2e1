"""Memory: what a scheduler has learned survives, and nonsense is refused whole."""

import json

import pytest

from gateway.core.events import Arrived, BackendChanged, BackendRemoved, Finished, FirstToken
from gateway.core.memory import memory_of, recall
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, RequestId
from tests.builders import a_backend, a_profile, a_request, a_workflow

BACKEND = a_backend("a")


def a_scheduler() -> Scheduler:
    """Backends come later, as in a gateway that starts."""
    return Scheduler((), policy_from_name("hexsage"))


def taught() -> Scheduler:
    """An engine was half as fast as its profile says, and workflows had two stages."""
    scheduler = a_scheduler()
    scheduler.handle(BackendChanged(BACKEND), 0.0)
    now = 0.0
    for number in range(40):
        for stage in ("link", "generate"):
            name = f"{stage}{number}"
            ref = a_workflow(f"w{number}", stage=stage, final=stage == "generate")
            request = a_request(name, prompt_tokens=2000, answer_tokens=50, workflow=ref)
            scheduler.handle(Arrived(request), now)
            scheduler.handle(FirstToken(RequestId(name)), now + 4.2)
            scheduler.handle(Finished(RequestId(name), 50), now + 14.2)
            now += 20.0
    return scheduler


def through_json(scheduler: Scheduler) -> object:
    """What a file would hold."""
    return json.loads(json.dumps(memory_of(scheduler.fleet, scheduler.workflows.templates)))


def test_what_was_learned_survives() -> None:
    old, new = taught(), a_scheduler()
    learned = old.fleet.loads[BACKEND.id].profile
    assert learned.prefill_s_per_token > 1.5 * BACKEND.profile.prefill_s_per_token

    recall(through_json(old), new.fleet, new.workflows.templates)
    new.handle(BackendChanged(BACKEND), 0.0)

    assert new.fleet.loads[BACKEND.id].profile == learned
    before, after = (s.workflows.templates.get("t") for s in (old, new))
    assert before is not None
    assert after is not None
    assert (after.runs, after.total_s) == (before.runs, before.total_s)
    assert after.stages == before.stages
    assert after.lookup("generate", 0) == before.lookup("generate", 0)
    assert through_json(new) == through_json(old)


def test_of_another_profile_nothing_is_taken_over() -> None:
    new = a_scheduler()
    recall(through_json(taught()), new.fleet, new.workflows.templates)
    other = a_backend("a", profile=a_profile(slowness=3))

    new.handle(BackendChanged(other), 0.0)

    assert new.fleet.loads[BACKEND.id].profile == other.profile


def test_what_is_known_of_backends_that_do_not_come_is_kept() -> None:
    new = a_scheduler()
    recall(through_json(taught()), new.fleet, new.workflows.templates)

    assert through_json(new) == through_json(taught())


def test_a_backend_that_goes_and_comes_again_is_remembered() -> None:
    scheduler = taught()
    learned = scheduler.fleet.loads[BACKEND.id].profile

    scheduler.handle(BackendRemoved(BackendId("a")), 1000.0)
    scheduler.handle(BackendChanged(BACKEND), 1001.0)

    assert scheduler.fleet.loads[BACKEND.id].profile == learned


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        [],
        {},
        {"profiles": {}},
        {"profiles": [], "templates": {}},
        {
            "profiles": {"a": {"speed": [1], "prefill": [0, 0, 1], "decode": [0, 0, 1]}},
            "templates": {},
        },
        {
            "profiles": {
                "a": {"speed": [1, 1, 1, 1], "prefill": ["x", 0, 1], "decode": [float("nan"), 0, 1]}
            },
            "templates": {},
        },
        {"profiles": {}, "templates": {"t": {"runs": 1}}},
        {
            "profiles": {},
            "templates": {"t": {"runs": 1, "total_s": [1], "stages": {}, "repeats": []}},
        },
    ],
)
def test_nonsense_is_refused_and_nothing_of_it_learned(nonsense: object) -> None:
    scheduler = a_scheduler()

    with pytest.raises(ValueError, match="not what a scheduler has learned"):
        recall(nonsense, scheduler.fleet, scheduler.workflows.templates)

    assert memory_of(scheduler.fleet, scheduler.workflows.templates) == {
        "profiles": {},
        "templates": {},
    }
