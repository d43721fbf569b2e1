"""LengthPredictor as the gateway uses it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.lengths import EDGES
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import Ended, Level, Mass, PromptQuery, Ticket, Vector
from gateway.predictor.repeats import FAMILIAR_AFTER, ONE_IN
from tests.predictor.builders import PATIENT, LetterEmbedder, a_predictor, a_query, taught

QUICK = PredictorSettings(is_semantic=False)
WIDE = (20, 300, 40, 900) * 6


def test_before_anything_is_seen_the_prior_answers_at_once() -> None:
    prediction = LengthPredictor(QUICK).predict_quick(a_query("some text"))
    assert prediction.level is Level.PRIOR
    assert not prediction.asks_more
    assert prediction.output.quantile(0.5) == pytest.approx(256, rel=0.1)


def test_it_learns_a_stage() -> None:
    predictor = LengthPredictor(QUICK)
    for _ in range(40):
        predictor.observe(predictor.predict_quick(a_query()), 70)
    prediction = predictor.predict_quick(a_query())
    assert prediction.level is Level.STAGE
    assert prediction.output.quantile(0.5) == pytest.approx(70, rel=0.15)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30_000),
            st.integers(0, 40_000),
            st.sampled_from(Ended),
            st.integers(1, 4),
        ),
        max_size=40,
    ),
    st.integers(1, 20_000),
)
def test_whatever_it_saw_its_answer_is_a_distribution_below_the_cap(
    seen: list[tuple[int, int, Ended, int]], cap: int
) -> None:
    predictor = LengthPredictor(QUICK)
    for prompt_tokens, tokens, ended, n in seen:
        query = PromptQuery(model="m", prompt_tokens=prompt_tokens, n=n)
        predictor.observe(predictor.predict_quick(query), tokens, ended)
    query = PromptQuery(model="m", prompt_tokens=9, max_tokens=cap, n=3, hint_tokens=cap)
    output = predictor.predict_quick(query).output
    assert sum(output.mass) == pytest.approx(1)
    assert output.quantile(1.0) <= min(cap, EDGES[-1])


def test_of_several_choices_the_call_lasts_as_long_as_the_longest() -> None:
    predictor = LengthPredictor(QUICK)
    for tokens in WIDE:
        predictor.observe(predictor.predict_quick(a_query()), tokens)
    one = predictor.predict_quick(a_query())
    four = predictor.predict_quick(replace(a_query(), n=4))
    assert four.output.mean_tokens > 1.5 * one.output.mean_tokens
    assert four.work_tokens == pytest.approx(4 * one.work_tokens)


def test_choices_reported_one_by_one_are_samples_of_one() -> None:
    predictor = LengthPredictor(QUICK)
    for _ in range(20):
        query = replace(a_query(), n=2)
        predictor.observe(predictor.predict_quick(query), (20, 900))
    output = predictor.predict_quick(a_query()).output
    assert output.exceeds(500) == pytest.approx(0.5, abs=0.1)


def test_a_hint_moves_the_answer_and_is_no_cap() -> None:
    predictor = LengthPredictor(QUICK)
    hinted = predictor.predict_quick(replace(a_query(), hint_tokens=3000))
    plain = predictor.predict_quick(a_query())
    assert hinted.output.mean_tokens > plain.output.mean_tokens
    assert hinted.output.exceeds(6000) > 0


def test_an_early_abort_says_nothing_a_late_one_that_it_was_longer() -> None:
    predictor = LengthPredictor(QUICK)
    for _ in range(20):
        predictor.observe(predictor.predict_quick(a_query()), 5, Ended.ABORTED, elapsed_s=0.4)
        predictor.observe(predictor.predict_quick(a_query()), 0, Ended.CAPPED)
    assert predictor.snapshot().observed == 0
    for _ in range(20):
        predictor.observe(predictor.predict_quick(a_query()), 2000, Ended.ABORTED, elapsed_s=30)
    assert predictor.predict_quick(a_query()).output.quantile(0.5) > 1500


def test_a_derived_stage_counts_once_it_has_been_seen_often() -> None:
    predictor = LengthPredictor(QUICK)
    query = PromptQuery(model="m", prompt_tokens=9, stages=("narrow", "wide", "-"))
    stages = [predictor.predict_quick(query).ticket.stage for _ in range(6)]
    assert stages == ["-"] * 4 + ["narrow"] * 2
    other = replace(query, stages=("other", "wide", "-"))
    assert predictor.predict_quick(other).ticket.stage == "wide"


def test_similar_prompts_answer_where_the_stage_is_wide() -> None:
    async def story() -> None:
        async with a_predictor() as predictor:
            for _ in range(30):
                for text, tokens in (("aaabbb", 900), ("mmmnnn", 20)):
                    predictor.observe(await predictor.predict(a_query(text)), tokens)
            await predictor.drained()
            long = await predictor.predict(a_query("aaabbc"))
            same = await predictor.predict(a_query("mmmnnn"))
            assert (long.level, same.level) == (Level.SIMILAR, Level.REPEATS)
            assert long.output.quantile(0.5) > 500
            assert same.output.quantile(0.5) < 30

    asyncio.run(story())


def test_a_narrow_stage_asks_nobody() -> None:
    async def story() -> None:
        async with a_predictor() as predictor:
            prediction = await taught(predictor, [50, 52, 49, 51] * 10, a_query("abc"))
            assert prediction.level is Level.STAGE
            assert not prediction.asks_more
            seen = predictor.snapshot()
            assert seen.narrow + seen.repeated > 20
            assert seen.asked == 0

    asyncio.run(story())


class StuckEmbedder(LetterEmbedder):
    """Embeds when told to."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()

    def embed(self, texts: Sequence[str]) -> Vector:
        """Wait, then embed."""
        self.gate.wait(10)
        return super().embed(texts)


def test_a_late_forecast_is_not_what_is_remembered_of_a_prompt_that_keeps_coming() -> None:
    async def story() -> None:
        embedder = StuckEmbedder()
        predictor = LengthPredictor(PredictorSettings(deadline_s=0.01), embedder)
        predictor.start()
        try:
            await taught(predictor, WIDE, a_query("abc"))
            embedder.gate.clear()
            for _ in range(FAMILIAR_AFTER + 1):
                await predictor.predict(a_query("xyz"))
            embedder.gate.set()
            assert predictor.snapshot().late == FAMILIAR_AFTER + 1
            assert predictor.snapshot().repeated == 0
        finally:
            embedder.gate.set()
            predictor.close()

    asyncio.run(story())


def unanswered(ticket: Ticket) -> asyncio.Future[tuple[Mass, Level] | None]:  # noqa: ARG001
    """What an owner gives that is too busy."""
    return asyncio.get_running_loop().create_future()


def test_of_a_prompt_that_keeps_coming_a_late_forecast_is_its_latest_and_few_are_asked() -> None:
    """In an overload all are late: to ask for each again would keep it one."""

    async def story() -> None:
        async with a_predictor() as predictor:
            await taught(predictor, WIDE, a_query("abc"))
            while predictor.snapshot().repeated == 0:
                known = await predictor.predict(a_query("xyz"))
            predictor._settings = replace(predictor._settings, deadline_s=0.001)
            assert predictor._owner is not None
            predictor._owner.ask = unanswered  # type: ignore[method-assign]
            late = [await predictor.predict(a_query("xyz")) for _ in range(4 * ONE_IN)]

            assert 3 <= predictor.snapshot().late <= 4
            assert {told.level for told in late} == {known.level}
            assert all((told.mass == known.mass).all() for told in late)
            assert any(told.ticket.text for told in late)  # whose outcomes are learned in full

    asyncio.run(story())


def test_past_the_deadline_the_stage_answers_and_the_outcome_is_learned() -> None:
    async def story() -> None:
        embedder = StuckEmbedder()
        settings = PredictorSettings(deadline_s=0.01)
        predictor = LengthPredictor(settings, embedder)
        predictor.start()
        try:
            await taught(predictor, WIDE, a_query("abc"))
            embedder.gate.clear()
            prediction = await predictor.predict(a_query("xyz"))
            embedder.gate.set()
            assert prediction.level is Level.STAGE
            assert predictor.snapshot().late >= 1

            before = sum(predictor.snapshot().history_samples.values())
            predictor.observe(prediction, 70)
            await predictor.drained()
            assert sum(predictor.snapshot().history_samples.values()) == before + 1
        finally:
            embedder.gate.set()
            predictor.close()

    asyncio.run(story())


def test_a_client_that_leaves_while_waiting_leaves_nothing_behind() -> None:
    async def story() -> None:
        embedder = StuckEmbedder()
        predictor = LengthPredictor(PATIENT, embedder)
        predictor.start()
        try:
            await taught(predictor, WIDE, a_query("abc"))
            embedder.gate.clear()
            async with asyncio.timeout(5):
                task = asyncio.ensure_future(predictor.predict(a_query("xyz")))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            embedder.gate.set()
            await predictor.drained()
            assert (await predictor.predict(a_query("xyz"))).level >= Level.SIMILAR
        finally:
            embedder.gate.set()
            predictor.close()

    asyncio.run(story())


def test_a_restart_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    kept = replace(PATIENT, journal=tmp_path / "lengths.journal")

    async def first() -> None:
        async with a_predictor(kept) as predictor:
            await taught(predictor, WIDE, a_query("abc"))

    async def second() -> None:
        async with a_predictor(kept) as predictor:
            assert predictor.predict_quick(a_query()).level is Level.STAGE
            await predictor.drained()
            assert predictor.snapshot().history_samples == {"m": len(WIDE)}
            assert (await predictor.predict(a_query("abc"))).level is Level.REPEATS

    asyncio.run(first())
    asyncio.run(second())


def test_its_memory_is_counted_and_its_levels_add_up() -> None:
    async def story() -> None:
        async with a_predictor() as predictor:
            await taught(predictor, WIDE, a_query("abc"))
            snapshot = predictor.snapshot()
            assert sum(snapshot.by_level.values()) == snapshot.answered == len(WIDE) + 1
            assert 0 < predictor.memory_bytes() < 64_000_000

    asyncio.run(story())
