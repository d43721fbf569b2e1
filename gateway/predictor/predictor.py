"""LengthPredictor: prompt -> length distribution; learns from what requests turned out to be."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.predictor.embedder import Embedder, load_embedder
from gateway.predictor.hints import HintTrust
from gateway.predictor.history import Histories
from gateway.predictor.journal import Journal
from gateway.predictor.learner import Learner, Numbers
from gateway.predictor.levels import Levels, Stage
from gateway.predictor.owner import Owner
from gateway.predictor.prediction import Prediction
from gateway.predictor.prompt import bounded
from gateway.predictor.query import Ended, Level, Mass, PromptQuery, Ticket
from gateway.predictor.repeats import Repeats, key_of
from gateway.predictor.similar import Similar
from gateway.predictor.vectors import Vectors

SEEN_OFTEN = 4
"""Calls after which a derived stage key counts as a stage."""
MAX_SEEN = 4096
NARROW_SAMPLES, NARROW_CV, NARROW_SD_TOKENS = 16, 0.3, 4.0
"""A stage with so many samples and no more spread than this has nothing to gain from level 4."""
MIN_SEARCHABLE = 8
MIN_ABORT_S = 1.0
"""A client that leaves sooner tells nothing of the length."""
RESTORED_PER_MODEL = 4000
"""Samples that levels 1-3 are told again at start; older ones would have faded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorSettings:
    """How much the predictor may use."""

    embedder: str | None = None
    """None: the built-in model; "hashed"; or the path of a sentence transformer as ONNX."""
    is_semantic: bool = True
    """False: levels 0-3 only; no thread, no model, no journal."""
    deadline_s: float = 0.002
    """How long a call waits for levels 4-5 before the stage level answers."""
    window: int = 10_000
    """Samples kept for each model's search."""
    max_models: int = 8
    """Models that can be searched."""
    max_bytes: int = 64_000_000
    """For everything: the embedder, all histories, caches."""
    journal: Path | None = None
    """Where samples are kept over a restart; None: nowhere."""
    seed: int = 0
    """Of the randomised calibration measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The predictor in numbers, for metrics and the admin API."""

    answered: int
    asked: int
    """Of `answered`: went to the owner thread."""
    late: int
    """Of `asked`: the deadline passed first."""
    refused: int
    """Too many were waiting; the stage level answered."""
    narrow: int
    """The stage is so narrow that nobody was asked."""
    repeated: int
    """The prompt keeps coming: its last forecast was given again."""
    observed: int
    unlearned: int
    """Outcomes that came faster than the owner thread could take them in."""
    by_level: dict[str, int] = field(default_factory=dict)
    history_samples: dict[str, int] = field(default_factory=dict)
    """By model."""
    calibration: dict[str, Numbers] = field(default_factory=dict)
    """By model, and by "model stage" for the busy stages; not labels for a metric, too many."""
    memory_bytes: int
    answer_s_p50: float
    """On the owner thread, waiting not included."""
    answer_s_p99: float


class LengthPredictor:
    """Predicts and learns. Everything but `memory_bytes` and `snapshot` is the event loop's."""

    def __init__(
        self, settings: PredictorSettings | None = None, embedder: Embedder | None = None
    ) -> None:
        self._settings = settings or PredictorSettings()
        self._levels = Levels()
        self._repeats = Repeats()
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._owner: Owner | None = None
        self._journal: Journal | None = None
        if self._settings.is_semantic:
            self._owner = self._make_owner(embedder or load_embedder(self._settings.embedder))
        self._counts = dict.fromkeys(
            ("answered", "asked", "late", "refused", "narrow", "repeated", "observed", "unlearned"),
            0,
        )
        self._by_level = dict.fromkeys(Level, 0)

    def _make_owner(self, embedder: Embedder) -> Owner:
        settings = self._settings
        vectors = Vectors(embedder)
        if settings.journal is not None:
            records = max(settings.window * settings.max_models // 2, 1)
            self._journal = Journal(settings.journal, vectors.name, vectors.dim, records)
        # Stage rings, caches and regressions have bounds of their own, which are set aside here.
        left = settings.max_bytes - vectors.nbytes - 12_000_000
        histories = Histories(vectors, settings.window, settings.max_models, max(left, 4_000_000))
        return Owner(Learner(Similar(vectors, histories), self._journal, settings.seed))

    def start(self) -> None:
        """Read what an earlier process learned, and start the thread."""
        if self._owner is None:
            return
        if self._journal is not None:
            self._journal.open()
            self._restore_levels(self._journal)
        self._owner.start()

    def close(self) -> None:
        """Stop the thread; what was learned is on disk afterwards."""
        if self._owner is not None:
            self._owner.close()

    async def predict(self, query: PromptQuery) -> Prediction:
        """Return the best forecast to be had within the deadline."""
        quick = self.predict_quick(query)
        return await self.narrowed(quick) if quick.asks_more else quick

    async def narrowed(self, quick: Prediction) -> Prediction:
        """Return what levels 4-5 say; if they are late, what they said of the same prompt before.

        And if they never did, what they were asked to narrow.
        """
        if self._owner is None:
            return quick
        ticket = quick.ticket
        reply = self._owner.ask(ticket)
        if reply is None:
            self._counts["refused"] += 1
            ticket.text = ""
            return self._narrowed(quick, self._repeats.known(ticket.prompt_key))
        self._counts["asked"] += 1
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            if not reply.done():
                is_late = True
                reply.set_result(None)

        timer = asyncio.get_running_loop().call_later(self._settings.deadline_s, give_up)
        try:
            answer = await reply
        finally:
            timer.cancel()
        if is_late:
            self._counts["late"] += 1
            return self._narrowed(quick, self._repeats.known(ticket.prompt_key))
        best = self._narrowed(quick, answer)
        self._repeats.remember(best)
        return best

    def _narrowed(self, quick: Prediction, answer: tuple[Mass, Level] | None) -> Prediction:
        if answer is None:
            return quick
        ticket = quick.ticket
        ticket.mass, ticket.level = answer
        self._by_level[quick.level] -= 1
        return self._finish(ticket, asks_more=False)

    def predict_quick(self, query: PromptQuery) -> Prediction:
        """Return what levels 0-3 say, at once; `asks_more` tells whether waiting could pay."""
        self._counts["answered"] += 1
        key = 0 if self._owner is None else key_of(query)
        echo = self._repeats.echo(key) if key else None
        if echo is not None:
            self._counts["repeated"] += 1
            self._by_level[echo.level] += 1
            return echo
        stage = self._stage_of(query)
        answer = self._levels.answer(query.model, stage, query.prompt_tokens)
        is_narrow = answer.stage is not None and _is_narrow(answer.stage)
        text = "" if self._owner is None or is_narrow else bounded(query.text)
        if is_narrow and query.text:
            self._counts["narrow"] += 1
        ticket = Ticket(
            query=query.without_text(stage),
            stage=stage,
            stage_mass=answer.mass,
            level=answer.level,
            text=text,
            mass=answer.mass,
            prompt_key=key,
        )
        asks_more = bool(text) and self._is_searchable(query.model)
        prediction = self._finish(ticket, asks_more=asks_more)
        if is_narrow:
            self._repeats.remember(prediction)
        return prediction

    def _finish(self, ticket: Ticket, *, asks_more: bool) -> Prediction:
        mass, hint_tokens = ticket.mass, ticket.query.hint_tokens
        self._by_level[ticket.level] += 1
        if hint_tokens is not None:
            mass = self._with_hint(ticket, hint_tokens)
        return Prediction(mass=mass, level=ticket.level, asks_more=asks_more, ticket=ticket)

    def observe(
        self,
        prediction: Prediction,
        output_tokens: int | Sequence[int],
        ended: Ended = Ended.FINISHED,
        elapsed_s: float | None = None,
    ) -> None:
        """Learn how long the answer was: all choices' tokens in one sum, or choice by choice.

        An answer that was cut short counts as longer than what there was of it; one aborted
        before anything came, or within a second, says nothing.
        """
        ticket = prediction.ticket
        n = ticket.query.n
        lengths: Sequence[float] = (
            (output_tokens / n,) if isinstance(output_tokens, int) else [*map(float, output_tokens)]
        )
        is_cut = ended is not Ended.FINISHED
        if is_cut:
            lengths = [tokens for tokens in lengths if tokens > 0]
        too_soon = elapsed_s is not None and elapsed_s < MIN_ABORT_S
        if not lengths or (ended is Ended.ABORTED and too_soon):
            return
        self._counts["observed"] += 1
        query = ticket.query
        for tokens in lengths:
            self._levels.add(
                query.model, ticket.stage, query.prompt_tokens, tokens, is_cut, 1 / len(lengths)
            )
        if query.hint_tokens is not None and not is_cut:
            stage = self._levels.stage(query.model, ticket.stage)
            if stage is not None:
                stage.hints.learn(ticket.mass, query.hint_tokens, lengths[0])
        # One choice stands for all of them: their mean would look less scattered than they are.
        if self._owner is None or ticket.is_echo:
            return
        if not self._owner.tell(ticket, lengths[0], ended):
            self._counts["unlearned"] += 1

    async def drained(self) -> None:
        """Wait until everything observed so far is learned (for tests and benches)."""
        if self._owner is not None:
            await self._owner.drained()

    def memory_bytes(self) -> int:
        """Return what the predictor holds, in bytes, as last counted."""
        held = 0 if self._owner is None else self._owner.published.nbytes
        return held + self._levels.nbytes + self._repeats.nbytes + 160 * len(self._seen)

    def snapshot(self) -> Snapshot:
        """Return the predictor in numbers, the owner thread's about a second old."""
        published = self._owner.published if self._owner is not None else None
        return Snapshot(
            **self._counts,
            by_level={level.name.lower(): count for level, count in self._by_level.items()},
            history_samples=dict(published.history_sizes) if published else {},
            calibration=published.calibration if published else {},
            memory_bytes=self.memory_bytes(),
            answer_s_p50=published.answer_s_p50 if published else 0.0,
            answer_s_p99=published.answer_s_p99 if published else 0.0,
        )

    def _stage_of(self, query: PromptQuery) -> str:
        """Return the most specific stage key seen often enough; the last one always is."""
        chosen = query.stages[-1]
        for key in reversed(query.stages[:-1]):
            count = self._seen.pop((query.model, key), 0) + 1
            self._seen[(query.model, key)] = count
            if count > SEEN_OFTEN:
                chosen = key
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return chosen

    def _is_searchable(self, model: str) -> bool:
        if self._owner is None:
            return False
        sizes = self._owner.published.history_sizes
        return sizes.get(model, 0) >= MIN_SEARCHABLE or (
            model not in sizes and any(size >= MIN_SEARCHABLE for size in sizes.values())
        )

    def _with_hint(self, ticket: Ticket, hint_tokens: int) -> Mass:
        stage = self._levels.stage(ticket.query.model, ticket.stage)
        trust = stage.hints if stage is not None else HintTrust()
        return trust.mixed(ticket.mass, hint_tokens)

    def _restore_levels(self, journal: Journal) -> None:
        records = list(journal.read())
        counts: dict[str, int] = {}
        for record in records:
            counts[record.model] = counts.get(record.model, 0) + 1
        for record in records:
            counts[record.model] -= 1
            if counts[record.model] < RESTORED_PER_MODEL:
                self._levels.add(
                    record.model,
                    record.stage,
                    record.prompt_tokens,
                    record.tokens,
                    record.ended is not Ended.FINISHED,
                    1.0,
                )
                self._seen[(record.model, record.stage)] = SEEN_OFTEN


def _is_narrow(stage: Stage) -> bool:
    if stage.samples < NARROW_SAMPLES:
        return False
    mean, sd = stage.spread_tokens()
    return sd <= max(NARROW_CV * mean, NARROW_SD_TOKENS)
