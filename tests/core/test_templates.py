"""Learned templates: what finished runs teach, and how little is kept."""

import pytest

from gateway.core.templates import (
    MAX_REPEATS_APART,
    MAX_STAGES,
    MAX_TEMPLATES,
    MEMORY,
    LearnedTemplate,
    LearnedTemplates,
    Mean,
)


def learned(*runs: list[tuple[str, float]]) -> LearnedTemplate:
    """The template these runs teach."""
    template = LearnedTemplate()
    for run in runs:
        template.learn(run)
    return template


def test_what_is_left_is_everything_from_the_stage_to_the_end() -> None:
    template = learned([("plan", 2.0), ("write", 5.0), ("check", 1.0)])

    remaining = {name: s.remaining_s.value for name, s in template.stages.items()}
    assert remaining == {"plan": 8.0, "write": 6.0, "check": 1.0}
    assert {name: s.own_s.value for name, s in template.stages.items()} == {
        "plan": 2.0,
        "write": 5.0,
        "check": 1.0,
    }
    assert template.total_s.value == 8.0


def test_means_are_over_runs() -> None:
    template = learned([("a", 2.0), ("b", 4.0)], [("a", 4.0)])

    a = template.lookup("a", 0)
    assert a is not None
    assert a.own_s.value == 3.0
    assert a.remaining_s.value == pytest.approx((6 + 4) / 2)
    assert a.followers == {"b": 1, "": 1}
    assert template.runs == 2


def test_the_third_time_has_less_ahead_of_it_than_the_first() -> None:
    template = learned([("revise", 1.0), ("revise", 1.0), ("revise", 1.0), ("test", 4.0)])

    left = []
    for repeat in range(3):
        known = template.lookup("revise", repeat)
        assert known is not None
        left.append(known.remaining_s.value)
    assert left == [7.0, 6.0, 5.0]


def test_a_repeat_never_seen_is_known_by_its_stage() -> None:
    template = learned([("revise", 1.0), ("test", 4.0)])

    assert template.lookup("revise", 3) is template.stages["revise"]
    assert template.lookup("unknown", 0) is None


def test_many_repeats_are_counted_together() -> None:
    template = learned([("a", 1.0)] * (MAX_REPEATS_APART + 10))

    assert template.lookup("a", 100) is template.lookup("a", MAX_REPEATS_APART)
    assert len(template._by_repeat) == MAX_REPEATS_APART + 1


def test_a_mean_forgets_slowly() -> None:
    mean = Mean()
    for _ in range(1000):
        mean.add(1.0)
    for _ in range(int(MEMORY)):
        mean.add(3.0)

    # (1 - 1/200)^200 of the old is left.
    assert mean.value == pytest.approx(3 - 2 * 0.367, abs=0.01)


def test_stages_are_bounded() -> None:
    template = learned([(f"s{n}", 1.0) for n in range(MAX_STAGES + 50)])

    assert len(template.stages) == MAX_STAGES
    # Learned from the end; the whole run counts all the same.
    assert template.total_s.value == MAX_STAGES + 50


def test_followers_are_bounded() -> None:
    template = learned(*([("hub", 1.0), (f"s{n}", 1.0)] for n in range(MAX_STAGES + 50)))

    assert all(len(s.followers) <= MAX_STAGES for s in template.stages.values())


def test_the_name_least_recently_learned_is_forgotten() -> None:
    templates = LearnedTemplates()
    for number in range(MAX_TEMPLATES):
        templates.learn(f"t{number}", [("a", 1.0)])
    templates.learn("t0", [("a", 1.0)])
    templates.learn("new", [("a", 1.0)])

    assert len(templates.items()) == MAX_TEMPLATES
    assert templates.get("t1") is None
    assert templates.get("t0") is not None
    assert templates.get("new") is not None
