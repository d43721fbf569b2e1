"""WorkflowSpec: a workflow as it is declared, its stages and what each waits for."""

from dataclasses import dataclass

from gateway.core.record import Record

UNNAMED_STAGE = "-"
"""Calls that name no stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec(Record):
    """A declared stage."""

    name: str
    depends_on: tuple[str, ...] = ()
    fan_out: int = 1
    """Answers it takes before the stages that depend on it may run."""
    max_repeats: int | None = None
    """How often it may come; None: that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec(Record):
    """A declared workflow: its stages and what each waits for."""

    name: str
    stages: tuple[StageSpec, ...] = ()
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if UNNAMED_STAGE in names or "" in names:
            raise ValueError(f"workflow '{self.name}' has a stage without a name of its own")
        if len(set(names)) != len(names):
            raise ValueError(f"workflow '{self.name}' names a stage twice")
        for stage in self.stages:
            for needed in stage.depends_on:
                if needed not in names:
                    raise ValueError(
                        f"stage '{stage.name}' of workflow '{self.name}' depends on "
                        f"'{needed}', which is not one of its stages"
                    )
        self._refuse_cycles()

    def stage(self, name: str) -> StageSpec | None:
        """Return the declared stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def _refuse_cycles(self) -> None:
        done: set[str] = set()
        while len(done) < len(self.stages):
            free = [s.name for s in self.stages if s.name not in done and done >= set(s.depends_on)]
            if not free:
                stuck = next(s.name for s in self.stages if s.name not in done)
                raise ValueError(f"stage '{stuck}' of workflow '{self.name}' waits for itself")
            done.update(free)
