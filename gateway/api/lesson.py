"""Lesson: what is predicted of one call, and learned from its end."""

from gateway.api.calls import Asked
from gateway.api.endpoints import Endpoint
from gateway.api.likeness import likened
from gateway.api.prompts import Prompt, SeenPrefixes, TokenRatios, estimate_tokens, read_prompt
from gateway.backends.base import Answer
from gateway.core.lengths import LengthDistribution
from gateway.core.types import PromptSegment, TenantId
from gateway.predictor.predictor import LengthPredictor
from gateway.predictor.prompt import query_of
from gateway.predictor.query import Ended, Prediction
from gateway.runtime.clock import Clock

UPLOAD_TOKENS = 1500
"""Half a minute of sound, as Whisper sees it."""
UPLOAD_OUTPUT_TOKENS = 100
NO_PROMPT = Prompt(b"", (), 0)
ONE_TOKEN = LengthDistribution.point(1)
"""The answer of a model that only reads."""


class School:
    """What all lessons share: what is known of prompts and lengths."""

    def __init__(self, predictor: LengthPredictor, clock: Clock) -> None:
        self.predictor = predictor
        self.clock = clock
        self.ratios = TokenRatios()
        self.prefixes = SeenPrefixes()


class Lesson:
    """One call's."""

    def __init__(
        self, school: School, endpoint: Endpoint, asked: Asked, tenant: TenantId, began_at: float
    ) -> None:
        self._school = school
        self._endpoint = endpoint
        self._asked = asked
        self._tenant = tenant
        self.began_at = began_at
        self._body = likened(endpoint.shape, asked.body)
        self._prompt = NO_PROMPT if endpoint.is_free else read_prompt(self._body)
        self._prediction: Prediction | None = None
        self.prompt_tokens = estimate_tokens(self._prompt, school.ratios.of(asked.model))
        if endpoint.is_form:
            self.prompt_tokens = UPLOAD_TOKENS
        self.answer: Answer | None = None

    async def forecast(self) -> LengthDistribution:
        """Return how long the answer may be, the client's cap included."""
        if not self._endpoint.generates:
            is_form = self._endpoint.is_form
            return LengthDistribution.point(UPLOAD_OUTPUT_TOKENS) if is_form else ONE_TOKEN
        asked = self._asked
        query = query_of(
            self._body,
            model=asked.model,
            prompt_tokens=self.prompt_tokens,
            stage=asked.said.stage,
            hint_tokens=asked.said.hint_tokens,
        )
        self._prediction = await self._school.predictor.predict(query)
        return self._prediction.output

    def prefix(self) -> tuple[PromptSegment, ...]:
        """Return what the prompt has in common with earlier ones; its tokens fit the prompt's."""
        if not self._endpoint.generates:
            return ()
        model, school = self._asked.model, self._school
        session = self._asked.said.session
        shared = school.prefixes.segments(model, self._prompt, school.ratios.of(model))
        if not session:
            return shared
        return school.prefixes.with_session(
            f"{model}\0{self._tenant}\0{session}", shared, self.prompt_tokens
        )

    def used_tokens(self) -> int | None:
        """Return what the engine has read and written for it; None if it did not answer."""
        if self.answer is None:
            return None
        usage = self.answer.usage
        prompt_tokens = self.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        return prompt_tokens + usage.output_tokens

    def learn(self) -> None:
        """Take in what the engine told of an answer, or what there was of one."""
        answer, school = self.answer, self._school
        if answer is None or self._endpoint.is_free:
            return
        usage = answer.usage
        if usage.prompt_tokens is not None:
            school.ratios.learn(self._asked.model, self._prompt, usage.prompt_tokens)
        if self._prediction is None:
            return
        if not answer.is_complete:
            ended = Ended.ABORTED
        elif answer.finish_reason == "length":
            ended = Ended.CAPPED
        else:
            ended = Ended.FINISHED
        elapsed_s = school.clock.now() - self.began_at
        if usage.output_tokens or ended is not Ended.FINISHED:
            school.predictor.observe(self._prediction, usage.output_tokens, ended, elapsed_s)
