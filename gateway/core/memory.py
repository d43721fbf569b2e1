"""What a scheduler has learned, as plain values that survive a restart, and back.

Corrections of backends' profiles, by backend, and the courses of workflows, by name. A correction
counts only for the constants that it corrects: another profile begins anew.
"""

from collections.abc import Mapping
from math import isfinite

from gateway.core.calibration import Speed
from gateway.core.corrections import Saved
from gateway.core.fleet import Fleet
from gateway.core.templates import LearnedTemplate, LearnedTemplates, Mean, StageStatistics
from gateway.core.types import BackendId


def memory_of(fleet: Fleet, templates: LearnedTemplates) -> dict[str, object]:
    """Return everything that was learned, in values that JSON knows."""
    saved = {**fleet.recalled}
    saved.update({load.id: load.calibration.saved() for load in fleet.loads.values()})
    return {
        "profiles": {
            name: {
                "speed": list(speed.constants),
                "prefill": list(speed.prefill),
                "decode": list(speed.decode),
            }
            for name, speed in saved.items()
        },
        "templates": {
            name: {
                "runs": template.runs,
                "total_s": _mean(template.total_s),
                "stages": {stage: _stage(known) for stage, known in template.stages.items()},
                "repeats": [
                    [stage, repeat, _stage(known)]
                    for (stage, repeat), known in template.repeats.items()
                ],
            }
            for name, template in templates.items()
        },
    }


def recall(memory: object, fleet: Fleet, templates: LearnedTemplates) -> None:
    """Learn all of it again; ValueError, and nothing learned, if it is not what it should be."""
    try:
        assert isinstance(memory, Mapping)
        profiles = {
            BackendId(str(name)): _read_speed(saved) for name, saved in memory["profiles"].items()
        }
        courses = {str(name): _read_template(saved) for name, saved in memory["templates"].items()}
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not what a scheduler has learned: {error!r}") from None
    fleet.recalled.update(profiles)
    for name, template in courses.items():
        templates.put(name, template)


def _mean(mean: Mean) -> list[float]:
    return [mean.value, mean.count]


def _stage(known: StageStatistics) -> dict[str, object]:
    return {
        "own_s": _mean(known.own_s),
        "remaining_s": _mean(known.remaining_s),
        "followers": dict(known.followers),
    }


def _read_mean(saved: list[float]) -> Mean:
    value, count = saved
    return Mean(_number(value), _number(count))


def _read_stage(saved: Mapping[str, object]) -> StageStatistics:
    own_s, remaining_s, followers = saved["own_s"], saved["remaining_s"], saved["followers"]
    assert isinstance(own_s, list)
    assert isinstance(remaining_s, list)
    assert isinstance(followers, dict)
    counts = {str(stage): int(_number(count)) for stage, count in followers.items()}
    return StageStatistics(_read_mean(own_s), _read_mean(remaining_s), counts)


def _read_template(saved: Mapping[str, object]) -> LearnedTemplate:
    template = LearnedTemplate()
    runs, total_s, stages, repeats = (
        saved[name] for name in ("runs", "total_s", "stages", "repeats")
    )
    assert isinstance(total_s, list)
    assert isinstance(stages, dict)
    assert isinstance(repeats, list)
    template.runs = int(_number(runs))
    template.total_s = _read_mean(total_s)
    template.stages.update({str(name): _read_stage(known) for name, known in stages.items()})
    template.repeats.update(
        {(str(stage), int(_number(repeat))): _read_stage(known) for stage, repeat, known in repeats}
    )
    return template


def _read_speed(saved: Mapping[str, list[float]]) -> Speed:
    prefill, base, kv, overhead = map(_number, saved["speed"])
    return Speed(
        (prefill, base, kv, overhead),
        _read_correction(saved["prefill"]),
        _read_correction(saved["decode"]),
    )


def _read_correction(saved: list[float]) -> Saved:
    learned_log, applied_log, samples = map(_number, saved)
    return Saved(learned_log, applied_log, int(samples))


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return value
