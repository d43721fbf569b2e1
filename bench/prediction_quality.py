"""How good are the forecasts? Every figure goes through the product's own LengthPredictor."""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.predictor.histograms import crps
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import Ended, PromptQuery

PATIENT = PredictorSettings(deadline_s=60.0)
"""Quality is measured without the deadline; what the deadline costs is the latency table's."""
LEARNED_AT_ONCE = 32
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Score:
    """Of one group of forecasts."""

    skill: float
    """1 - CRPS / CRPS of the distribution of all earlier lengths."""
    rho: float
    """Spearman's, of the predicted mean with the truth."""
    rho_median: float
    cover80: float
    crps: float


@dataclass(frozen=True, slots=True)
class Past:
    """One call that the predictor has seen end."""

    query: PromptQuery
    tokens: int
    ended: Ended = Ended.FINISHED


async def score(
    past: Sequence[Past], tests: Sequence[Past], base: Lengths, settings: PredictorSettings
) -> Score:
    """Learn `past`, forecast `tests`; nothing is learned from a test."""
    predictor = LengthPredictor(settings)
    predictor.start()
    try:
        for number, call in enumerate(past):
            predictor.observe(await predictor.predict(call.query), call.tokens, call.ended)
            if number % LEARNED_AT_ONCE == LEARNED_AT_ONCE - 1:
                await predictor.drained()
        await predictor.drained()
        outputs = [(await predictor.predict(call.query)).output for call in tests]
    finally:
        predictor.close()
    truth = np.array([call.tokens for call in tests])
    own = [crps(np.array(o.mass), t) for o, t in zip(outputs, truth, strict=True)]
    covered = [o.quantile(0.1) <= t <= o.quantile(0.9) for o, t in zip(outputs, truth, strict=True)]
    return Score(
        skill=1 - float(np.mean(own)) / empirical_crps(base, truth),
        rho=spearman(np.array([o.mean_tokens for o in outputs]), truth),
        rho_median=spearman(np.array([o.quantile(0.5) for o in outputs]), truth),
        cover80=float(np.mean(covered)),
        crps=float(np.mean(own)),
    )


def empirical_crps(lengths: Lengths, truth: Lengths) -> float:
    """Return the exact mean CRPS of the empirical distribution of `lengths`."""
    atoms = np.sort(lengths).astype(float)
    below = np.arange(1, len(atoms)) / len(atoms)
    spread = float((below * (1 - below) * np.diff(atoms)).sum())
    return float(np.abs(atoms[None, :] - truth[:, None]).mean()) - spread


def spearman(a: NDArray[np.generic], b: NDArray[np.generic]) -> float:
    """Return the rank correlation."""

    def ranks(values: NDArray[np.generic]) -> NDArray[np.float64]:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        middle: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
        return middle

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def mean_of(scores: Sequence[Score]) -> Score:
    """Return the mean of each figure."""
    names = Score.__dataclass_fields__
    return Score(**{name: float(np.mean([getattr(s, name) for s in scores])) for name in names})


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts and, by model, how many tokens each was answered with."""

    texts: list[str]
    tokens: dict[str, Lengths]

    @classmethod
    def load(cls, path: Path) -> "Prompts":
        """Read `{"prompts": [...], "output_tokens": {model: [...]}}`."""
        raw = json.loads(path.read_text("utf-8"))
        return cls(raw["prompts"], {m: np.array(v) for m, v in raw["output_tokens"].items()})

    def split(self, model: str, number: int) -> tuple[Lengths, Lengths, np.random.Generator]:
        """Return the indices of 70 % past and 30 % new prompts."""
        rng = np.random.default_rng(1000 + number)
        order = rng.permutation(np.flatnonzero(self.tokens[model] > 0))
        cut = int(0.7 * len(order))
        return order[:cut], order[cut:], rng


def call(
    model: str, text: str, tokens: int, ended: Ended = Ended.FINISHED, stage: str = "-"
) -> Past:
    """Return a chat call; four characters a token is near enough for the input's length."""
    tokens_in = max(1, len(text) // 4)
    query = PromptQuery(model=model, prompt_tokens=tokens_in, text=text, stages=(stage,))
    return Past(query, int(tokens), ended)


async def unseen(data: Prompts, model: str, number: int) -> Score:
    """Prompts that were never seen before."""
    past, new, _ = data.split(model, number)
    tokens = data.tokens[model]
    return await score(
        [call(model, data.texts[i], tokens[i]) for i in past],
        [call(model, data.texts[i], tokens[i]) for i in new],
        tokens[past],
        PATIENT,
    )


async def templated(data: Prompts, model: str, number: int) -> Score:
    """The same, each prompt inside one template of 35,000 characters."""
    past, new, _ = data.split(model, number)
    tokens = data.tokens[model]

    def wrapped(i: int) -> Past:
        text = f"{TEMPLATE_HEAD}{data.texts[i]}{TEMPLATE_TAIL}"
        return call(model, text, tokens[i], stage="template")

    return await score([wrapped(i) for i in past], [wrapped(i) for i in new], tokens[past], PATIENT)


async def capped(data: Prompts, model: str, number: int) -> Score:
    """40 % of the history was cut at a max_tokens of 128, 256 or 512; the tests are not."""
    past, new, rng = data.split(model, number)
    tokens = data.tokens[model]
    caps = np.where(rng.random(len(past)) < 0.4, rng.choice((128, 256, 512), len(past)), 10**9)
    history = [
        call(
            model,
            data.texts[i],
            min(tokens[i], cap),
            Ended.CAPPED if tokens[i] > cap else Ended.FINISHED,
        )
        for i, cap in zip(past, caps, strict=True)
    ]
    tests = [call(model, data.texts[i], tokens[i]) for i in new]
    return await score(history, tests, tokens[past], PATIENT)


async def repeated(
    data: Prompts, model: str, twin: str, number: int, *, is_taught: bool = False
) -> Score:
    """Each tested prompt was seen once: a near twin's answer, scaled, stands in for that time.

    If it is taught, the other prompts came twice as well, first with the twin's answer: from them
    it can learn how alike two answers to one prompt are. Of a tested prompt it sees one all the
    same.
    """
    past, new, _ = data.split(model, number)
    tokens, other = data.tokens[model], data.tokens[twin]
    ratio = np.exp(np.median(np.log(tokens[past]) - np.log(np.maximum(other[past], 1))))

    def twins(which: Lengths) -> list[Past]:
        return [call(model, data.texts[i], max(1, round(other[i] * ratio))) for i in which]

    history = twins(past) if is_taught else []
    history += [call(model, data.texts[i], tokens[i]) for i in past] + twins(new)
    tests = [call(model, data.texts[i], tokens[i]) for i in new]
    return await score(history, tests, tokens[past], PATIENT)


Flow = tuple[tuple[str, int, int], ...]


def load_flows(folder: Path) -> dict[str, list[Flow]]:
    """Return the distinct workflows (stage, input, output tokens) by data base, replays dropped."""
    found = {}
    for name in ("financial", "formula1"):
        raw = json.loads((folder / f"input_file_{name}.json").read_text())
        flows = (
            tuple((c["step"], c["input_length"], c["output_length"]) for c in f["Text2SQLRequest"])
            for f in raw
        )
        found[name] = list(dict.fromkeys(flows))
    return found


async def stages(past: Sequence[Flow], new: Sequence[Flow]) -> Score:
    """Agent calls: no text is known of them, only stage and input length (levels 0-3)."""

    def calls(flows: Sequence[Flow]) -> Iterator[Past]:
        for flow in flows:
            for stage, tokens_in, tokens_out in flow:
                query = PromptQuery(model="m", prompt_tokens=tokens_in, stages=(stage,))
                yield Past(query, tokens_out)

    history = list(calls(past))
    base = np.array([each.tokens for each in history])
    return await score(history, list(calls(new)), base, PredictorSettings(is_semantic=False))


Study = Callable[[Prompts, str, int], Awaitable[Score]]

TEMPLATE_HEAD = "You write SQL for the database below. Think in steps, then answer.\n" + "\n".join(
    f"CREATE TABLE t{i} (id INTEGER PRIMARY KEY, name_{i} TEXT, amount_{i} REAL, owner INTEGER "
    f"REFERENCES t{(i * 7) % 230}(id)); -- sample rows: ({i}, 'row {i}', {i * 1.5}, {i % 9})"
    for i in range(230)
)
TEMPLATE_HEAD += "\n\nThe user's question follows.\nQuestion: "
TEMPLATE_TAIL = (
    "\n\nUse only the tables above. Do not invent columns. Explain each step before you write the "
    "statement, check it against the schema, and end with the statement alone on the last line.\n"
)
