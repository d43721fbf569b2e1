"""Valid queries, tickets and a started predictor, with the one thing that matters set."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from gateway.predictor.prediction import Prediction
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import Level, PromptQuery, Ticket, Vector

PATIENT = PredictorSettings(deadline_s=30.0)


class LetterEmbedder:
    """Counts letters: texts of the same letters are the same, unlike ones are not."""

    name = "letters"
    dim = coarse = 26
    nbytes = 0

    def embed(self, texts: Sequence[str]) -> Vector:
        """Return one row for each text."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        rows = np.array([[text.count(letter) for letter in letters] for text in texts], float)
        rows += 1e-3
        unit: Vector = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return unit


def a_query(
    text: str = "", *, model: str = "m", stage: str = "s", prompt_tokens: int = 100
) -> PromptQuery:
    """Return a query of one stage."""
    return PromptQuery(model=model, prompt_tokens=prompt_tokens, stages=(stage,), text=text)


def a_ticket(text: str = "a", *, model: str = "m", stage: str = "s") -> Ticket:
    """Return a ticket whose stage knows nothing."""
    flat = np.full(48, 1 / 48)
    return Ticket(
        query=a_query(model=model, stage=stage),
        stage=stage,
        stage_mass=flat,
        level=Level.STAGE,
        text=text,
        mass=flat,
    )


@asynccontextmanager
async def a_predictor(
    settings: PredictorSettings = PATIENT,
) -> AsyncIterator[LengthPredictor]:
    """Run a predictor that compares prompts by their letters."""
    predictor = LengthPredictor(settings, LetterEmbedder())
    predictor.start()
    try:
        yield predictor
    finally:
        predictor.close()


async def taught(
    predictor: LengthPredictor, lengths: Sequence[int], query: PromptQuery
) -> Prediction:
    """Observe one answer of each length to `query`, then predict the next."""
    for tokens in lengths:
        predictor.observe(await predictor.predict(query), tokens)
    await predictor.drained()
    return await predictor.predict(query)
