"""What finished workflows teach about those that run: how long a stage takes, how much is left.

Clients need not declare anything. For each workflow name the gateway keeps running means over
finished runs, by stage and by how often the stage had come before (`revise` the third time has
less ahead of it than the first): seconds of the visit itself, seconds of the whole rest of the
run along its critical path, and what came next. All seconds are of the average backend, unloaded,
so they do not grow with the queues.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_TEMPLATES = 512
MAX_STAGES = 128
MAX_REPEATS_APART = 4
"""Visits beyond this are counted together."""
MEMORY = 200.0
"""Runs over which means are kept: a newer run weighs at least 1 / MEMORY."""


@dataclass(slots=True)
class Mean:
    """A running mean that forgets slowly."""

    value: float = 0.0
    count: float = 0.0

    def add(self, sample: float) -> None:
        """Take in one more sample."""
        self.count = min(self.count + 1, MEMORY)
        self.value += (sample - self.value) / self.count


@dataclass(slots=True)
class StageStatistics:
    """What is known of one stage (or one repeat of it)."""

    own_s: Mean = field(default_factory=Mean)
    remaining_s: Mean = field(default_factory=Mean)
    """From the start of this stage to the workflow's end, this stage included."""
    followers: dict[str, int] = field(default_factory=dict)
    """How often each stage came next; "" is the end."""


class LearnedTemplate:
    """The statistics of one workflow name."""

    __slots__ = ("_by_repeat", "_by_stage", "runs", "total_s")

    def __init__(self) -> None:
        self._by_stage: dict[str, StageStatistics] = {}
        self._by_repeat: dict[tuple[str, int], StageStatistics] = {}
        self.total_s = Mean()
        """The whole run along its critical path."""
        self.runs = 0

    def learn(self, path: Iterable[tuple[str, float]]) -> None:
        """Take in a finished run: its stage visits in order with their seconds."""
        visits = list(path)
        self.runs += 1
        remaining_s = 0.0
        follower = ""
        seen: dict[str, int] = {}
        repeats = []
        for stage, _ in visits:
            repeats.append(min(seen.get(stage, 0), MAX_REPEATS_APART))
            seen[stage] = seen.get(stage, 0) + 1
        for (stage, own_s), repeat in zip(reversed(visits), reversed(repeats), strict=True):
            remaining_s += own_s
            for statistics in self._statistics(stage, repeat):
                statistics.own_s.add(own_s)
                statistics.remaining_s.add(remaining_s)
                if len(statistics.followers) < MAX_STAGES or follower in statistics.followers:
                    statistics.followers[follower] = statistics.followers.get(follower, 0) + 1
            follower = stage
        self.total_s.add(remaining_s)

    def lookup(self, stage: str, repeat: int) -> StageStatistics | None:
        """Return what is known of a stage that has come `repeat` times before; None if nothing."""
        found = self._by_repeat.get((stage, min(repeat, MAX_REPEATS_APART)))
        return found or self._by_stage.get(stage)

    def rest_s(self, stage: str, repeat: int, *, is_last: bool = False) -> float | None:
        """Return the seconds that come after a visit of a stage; None if nothing is known.

        `is_last`: the stage may not come again. Then those runs in which it did say nothing of
        this one, and the mean over all is solved for the mean over the others.
        """
        known = self.lookup(stage, repeat)
        if known is None or known.remaining_s.value <= 0:
            return None
        rest_s = max(known.remaining_s.value - known.own_s.value, 0.0)
        again = known.followers.get(stage, 0) / max(sum(known.followers.values()), 1)
        if not is_last or again == 0:
            return rest_s
        next_one = self.lookup(stage, repeat + 1) or known
        if again == 1:
            return max(rest_s - next_one.own_s.value, 0.0)
        return max((rest_s - again * next_one.remaining_s.value) / (1 - again), 0.0)

    @property
    def stages(self) -> dict[str, StageStatistics]:
        """The statistics by stage, all repeats together."""
        return self._by_stage

    @property
    def repeats(self) -> dict[tuple[str, int], StageStatistics]:
        """The statistics by stage and by how often it had come before."""
        return self._by_repeat

    def _statistics(self, stage: str, repeat: int) -> list[StageStatistics]:
        if stage not in self._by_stage and len(self._by_stage) >= MAX_STAGES:
            return []
        return [
            self._by_stage.setdefault(stage, StageStatistics()),
            self._by_repeat.setdefault((stage, repeat), StageStatistics()),
        ]


class LearnedTemplates:
    """Templates by workflow name, the least recently used forgotten first."""

    __slots__ = ("_templates",)

    def __init__(self) -> None:
        self._templates: OrderedDict[str, LearnedTemplate] = OrderedDict()

    def get(self, name: str) -> LearnedTemplate | None:
        """Return the template of a name, if anything has been learned of it."""
        return self._templates.get(name)

    def learn(self, name: str, path: Iterable[tuple[str, float]]) -> None:
        """Take in a finished run of the named workflow."""
        template = self._templates.get(name)
        if template is None:
            template = self._templates[name] = LearnedTemplate()
            if len(self._templates) > MAX_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates.move_to_end(name)
        template.learn(path)

    def put(self, name: str, template: LearnedTemplate) -> None:
        """Take over what an earlier process learned of a workflow."""
        self._templates[name] = template
        if len(self._templates) > MAX_TEMPLATES:
            self._templates.popitem(last=False)

    def items(self) -> list[tuple[str, LearnedTemplate]]:
        """Every template by name."""
        return list(self._templates.items())
