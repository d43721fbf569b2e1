"""Lesson: what is predicted of one call, and learned from its end."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.api.calls import Asked
from gateway.api.endpoints import Endpoint
from gateway.api.likeness import likened
from gateway.api.prompts import (
    SeenPrefixes,
    Sketch,
    TokenRatios,
    estimate_tokens,
    read_prompt,
    sketch_of,
)
from gateway.backends.base import Usage
from gateway.core.lengths import LengthDistribution
from gateway.core.types import PromptSegment, TenantId
from gateway.predictor.prompt import query_of
from gateway.predictor.query import Ended, PromptQuery
from gateway.runtime.clock import Clock

if TYPE_CHECKING:  # workers have no predictor, and no use for what it imports
    from gateway.predictor.prediction import Prediction
    from gateway.predictor.predictor import LengthPredictor

UPLOAD_TOKENS = 1500
"""Half a minute of sound, as Whisper sees it."""
UPLOAD_OUTPUT_TOKENS = 100
MAX_OUTLINED, MAX_OUTLINED_BYTES = 512, 16_384
"""Bodies whose outlines are kept, with their outlines, and how long they may be."""
NO_PROMPT = Sketch(0, 0)
UNKNOWN = LengthDistribution.point(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a call's body tells of its costs, without the body."""

    model: str
    sketch: Sketch = NO_PROMPT
    query: PromptQuery | None = None
    """What the predictor is asked; its prompt's tokens are not known yet. None: nothing."""
    prompt_tokens: int | None = None
    """Where the prompt cannot be seen."""
    output_tokens: int = 1
    """Of answers that nobody predicts; 1 for a model that only reads."""
    session: str = ""
    """Calls of one session continue each other; empty: it has none."""
    is_free: bool = False
    """There is nothing to learn from it."""


def outline_of(endpoint: Endpoint, asked: Asked, tenant: TenantId) -> Outline:
    """Return the outline of a call."""
    model = asked.model
    if endpoint.is_free:
        return Outline(model=model, is_free=True)
    if endpoint.is_form:
        return Outline(model=model, prompt_tokens=UPLOAD_TOKENS, output_tokens=UPLOAD_OUTPUT_TOKENS)
    body = likened(endpoint.shape, asked.body)
    sketch = sketch_of(model, read_prompt(body))
    if not endpoint.generates:
        return Outline(model=model, sketch=sketch)
    said = asked.said
    query = query_of(
        body, model=model, prompt_tokens=0, stage=said.stage, hint_tokens=said.hint_tokens
    )
    session = f"{model}\0{tenant}\0{said.session}" if said.session else ""
    return Outline(model=model, sketch=sketch, query=query, session=session)


class Outlines:
    """The outlines of bodies that were seen lately: who asks the same again has it at once."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], Outline] = OrderedDict()

    def of(self, endpoint: Endpoint, asked: Asked, tenant: TenantId, raw: bytes) -> Outline:
        """Return the outline of a call with this body."""
        if len(raw) > MAX_OUTLINED_BYTES or endpoint.is_form:
            return outline_of(endpoint, asked, tenant)
        said = asked.said
        key = (raw, endpoint.path, asked.model, tenant, said.stage, said.hint_tokens, said.session)
        outline = self._known.get(key)
        if outline is None:
            outline = self._known[key] = outline_of(endpoint, asked, tenant)
            if len(self._known) > MAX_OUTLINED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return outline


class Told(Protocol):
    """What is known of an answer, as far as it has come."""

    @property
    def usage(self) -> Usage:
        """Token counts so far."""

    @property
    def is_complete(self) -> bool:
        """The engine ended the answer in order."""

    @property
    def finish_reason(self) -> str | None:
        """Why the engine ended it, where it has."""


class School:
    """What all lessons share: what is known of prompts and lengths."""

    def __init__(self, predictor: "LengthPredictor", clock: Clock) -> None:
        self.predictor = predictor
        self.clock = clock
        self.ratios = TokenRatios()
        self.prefixes = SeenPrefixes()


class Lesson:
    """One call's."""

    def __init__(self, school: School, outline: Outline, began_at: float) -> None:
        self._school = school
        self._outline = outline
        self.began_at = began_at
        self._prediction: Prediction | None = None
        self._unpredicted = UNKNOWN
        ratio = school.ratios.of(outline.model)
        self.prompt_tokens = outline.prompt_tokens or estimate_tokens(outline.sketch, ratio)

    @property
    def output(self) -> LengthDistribution:
        """How long the answer may be, the client's cap included."""
        return self._unpredicted if self._prediction is None else self._prediction.output

    @property
    def further_tokens(self) -> int:
        """Output tokens of further choices (n > 1), beside the longest."""
        told = self._prediction
        return 0 if told is None else max(round(told.work_tokens - told.output.mean_tokens), 0)

    def ask(self) -> bool:
        """Have the answer predicted by what is known at once; return whether to `wait` for more."""
        outline = self._outline
        if outline.query is None:
            self._unpredicted = LengthDistribution.point(outline.output_tokens)
            return False
        query = outline.query.with_prompt_tokens(self.prompt_tokens)
        self._prediction = self._school.predictor.predict_quick(query)
        return self._prediction.asks_more

    async def wait(self) -> None:
        """Wait for the best prediction that is to be had in time."""
        assert self._prediction is not None
        self._prediction = await self._school.predictor.narrowed(self._prediction)

    def prefix(self) -> tuple[PromptSegment, ...]:
        """Return what the prompt has in common with earlier ones; its tokens fit the prompt's."""
        outline, school = self._outline, self._school
        if outline.query is None:
            return ()
        shared = school.prefixes.segments(outline.sketch, school.ratios.of(outline.model))
        if not outline.session:
            return shared
        return school.prefixes.with_session(outline.session, shared, self.prompt_tokens)

    def used_tokens(self, told: Told) -> int:
        """Return what the engine has read and written for it."""
        usage = told.usage
        prompt_tokens = self.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        return prompt_tokens + usage.output_tokens

    def learn(self, told: Told) -> None:
        """Take in what the engine told of an answer, or what there was of one."""
        outline, school = self._outline, self._school
        if outline.is_free:
            return
        usage = told.usage
        if usage.prompt_tokens is not None:
            school.ratios.learn(outline.model, outline.sketch, usage.prompt_tokens)
        if self._prediction is None:
            return
        if not told.is_complete:
            ended = Ended.ABORTED
        elif told.finish_reason == "length":
            ended = Ended.CAPPED
        else:
            ended = Ended.FINISHED
        elapsed_s = school.clock.now() - self.began_at
        if usage.output_tokens or ended is not Ended.FINISHED:
            school.predictor.observe(self._prediction, usage.output_tokens, ended, elapsed_s)
