"""What is asked of the predictor, and what it remembers of it."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Mass = NDArray[np.float64]
"""Probability by bucket of `gateway.core.lengths.EDGES`."""


class Level(IntEnum):
    """The narrowest evidence an answer rests on."""

    PRIOR = 0
    GLOBAL = 1
    MODEL = 2
    STAGE = 3
    SIMILAR = 4
    REPEATS = 5


class Ended(StrEnum):
    """How a generation ended; all but `FINISHED` say only that the answer was longer."""

    FINISHED = "finished"
    """The model stopped: end of text, a stop sequence, a tool call."""
    CAPPED = "capped"
    """finish_reason=length."""
    ABORTED = "aborted"
    """The client left, an upstream failed, a hedge lost."""


@dataclass(slots=True, kw_only=True)
class PromptQuery:
    """One call, as far as the length of its answer goes.

    Nobody changes one: it is not frozen because that makes each four times as dear to make.
    """

    model: str
    """The served model: aliases are resolved."""
    prompt_tokens: int
    stages: tuple[str, ...] = ("-",)
    """Stage keys, most specific first. Derived ones count once seen often; the last always does."""
    text: str = ""
    """What to embed; empty: levels 0-3 only."""
    max_tokens: int | None = None
    n: int = 1
    """Choices (or best_of): each is a draw from the same distribution."""
    hint_tokens: int | None = None
    """The client's own expectation: a prior, never a cap."""

    def __post_init__(self) -> None:
        if self.n < 1 or not self.stages:
            raise ValueError("n must be >= 1 and there must be a stage key")

    def with_prompt_tokens(self, prompt_tokens: int) -> "PromptQuery":
        """Return the same call with a prompt that long; the rest was checked when it was made."""
        other = object.__new__(PromptQuery)
        other.model, other.prompt_tokens, other.stages = self.model, prompt_tokens, self.stages
        other.text, other.max_tokens = self.text, self.max_tokens
        other.n, other.hint_tokens = self.n, self.hint_tokens
        return other

    def without_text(self, stage: str) -> "PromptQuery":
        """Return what is remembered of it: of its stages the one that was chosen, and no text."""
        other = self.with_prompt_tokens(self.prompt_tokens)
        other.stages, other.text = (stage,), ""
        return other


@dataclass(frozen=True, slots=True)
class Again:
    """What the same prompt was answered with before, and similar ones."""

    log_tokens: NDArray[np.float64]
    """Of the earlier answers; there is one at least, and all had ended by themselves."""
    parent: Mass
    """What similar prompts say."""


@dataclass(slots=True, eq=False)
class Ticket:
    """What is remembered of a prediction until its outcome is known.

    The event loop fills in the first part; the owner thread alone touches the second.
    """

    query: PromptQuery
    stage: str
    stage_mass: Mass
    """Level 3, uncapped: the parent of level 4 and what its skill is measured against."""
    level: Level
    text: str
    """What to embed; empty once it is embedded, or where it does not pay."""
    mass: Mass
    """The forecast for one choice, uncapped: what was answered, before the client's hint."""
    prompt_key: int = 0
    """See `gateway.predictor.repeats`; 0: it is not looked for."""
    is_echo: bool = False
    """It stands for many uses of one prompt: its outcomes are the stage's to learn from only."""

    vector: Vector | None = None
    similar_mass: Mass | None = None
    """Level 4-5 as found, answered or not."""
    again: Again | None = None
    guess: float = float("nan")
