"""What do the forecasts cost? Latency, loop stall, memory, and a soak of the data structures."""

import asyncio
import multiprocessing
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import ParamSpec, TypeVar

import numpy as np

from gateway.predictor import pages
from gateway.predictor.embedder import load_embedder
from gateway.predictor.generation import Sample
from gateway.predictor.history import Histories
from gateway.predictor.journal import Journal, Record
from gateway.predictor.levels import Levels
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.predictor.query import Ended, Level, PromptQuery, Vector
from gateway.predictor.vectors import Vectors
from gateway.runtime.garbage import calm

WORDS = (  # noqa: SIM905  (fifty words read better as a sentence)
    "the table of orders holds one row for every item a customer has bought and when it was sent "
    "how many were returned last year which region sold most and why did revenue fall in march "
    "explain each step write a query list names compare summarise translate describe estimate"
).split(" ")
TOKENS_PER_WORD = 1.15
P = ParamSpec("P")
T = TypeVar("T")
HISTORY = 10_000


def text_of(tokens: int, rng: np.random.Generator) -> str:
    """Return a text of about so many tokens that is like no other."""
    words = rng.choice(WORDS, max(1, round(tokens / TOKENS_PER_WORD)))
    numbers = rng.integers(0, 100_000, 2)
    return f"{' '.join(words)} {numbers[0]} and {numbers[1]}?"


def clustered(count: int, dim: int, rng: np.random.Generator) -> Vector:
    """Return unit vectors in clusters, as prompts come."""
    centres = rng.standard_normal((300, dim))
    rows = centres[rng.integers(0, 300, count)] + 0.7 * rng.standard_normal((count, dim))
    unit: Vector = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


async def filled(samples: int) -> LengthPredictor:
    """Return a started predictor that has seen so many short prompts end."""
    predictor = LengthPredictor(PredictorSettings(deadline_s=60.0))
    predictor.start()
    rng = np.random.default_rng(3)
    for number in range(samples):
        query = PromptQuery(model="m", prompt_tokens=32, text=text_of(32, rng))
        predictor.observe(predictor.predict_quick(query), int(rng.lognormal(5.0, 1.0)) + 1)
        if number % 512 == 511:
            await predictor.drained()
    await predictor.drained()
    calm()  # as the gateway does
    return predictor


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one prompt length, in milliseconds."""

    tokens: int
    kind: str
    min_ms: float
    p50_ms: float
    cpu_ms: float
    """Process CPU of one forecast (p50), both threads."""


async def latency(
    predictor: LengthPredictor, tokens: int, *, template: bool, count: int
) -> Latency:
    """Time `predict` from call to answer, each prompt new and in a turn of the loop of its own."""
    rng = np.random.default_rng(tokens)
    head = text_of(tokens - 32, np.random.default_rng(5)) + " Question: " if template else ""
    kind = "known template + 32 new" if template else "all new"
    stage = f"{kind} {tokens}"
    wall, cpu = [], []
    for number in range(count + 20):
        text = head + text_of(32 if template else tokens, rng)
        query = PromptQuery(model="m", prompt_tokens=tokens, text=text, stages=(stage,))
        await asyncio.sleep(0)
        began, worked = perf_counter(), process_time()
        (await predictor.predict(query)).output  # noqa: B018  (it is worked out when looked at)
        if number >= 20:
            wall.append(perf_counter() - began)
            cpu.append(process_time() - worked)
    w, c = (np.array(each) * 1e3 for each in (wall, cpu))
    return Latency(tokens, kind, w.min(), float(np.median(w)), float(np.median(c)))


def _spin(stop: Event) -> None:
    while not stop.is_set():
        sum(range(10_000))


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep another core busy meanwhile."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_spin, args=(stop,), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


@dataclass(frozen=True, slots=True)
class Stall:
    """How late the loop's timers fire, in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    worst_ms: float
    late_share: float
    """Of the forecasts: the deadline passed first."""
    job_p999_ms: float
    """CPU of the owner thread's jobs (a batch answered, an outcome learned): while one computes
    without letting go of the interpreter lock, the loop waits. Unlike the timer's delay it does
    not have the machine's other work in it."""


async def stall(predictor: LengthPredictor, per_s: float, seconds: float) -> Stall:
    """Predict and observe at a steady rate (0: not at all), and watch a 1 ms timer."""
    late: list[float] = []
    jobs: list[float] = []
    _time_jobs(predictor, jobs)
    stop = perf_counter() + seconds
    before = predictor.snapshot()

    async def watch() -> None:
        while perf_counter() < stop:
            began = perf_counter()
            await asyncio.sleep(0.001)
            late.append(perf_counter() - began - 0.001)

    async def serve() -> None:
        rng = np.random.default_rng(11)
        while per_s and perf_counter() < stop:
            await asyncio.sleep(float(rng.exponential(1 / per_s)))
            tokens = int(rng.choice((32, 300, 2000)))
            query = PromptQuery(model="m", prompt_tokens=tokens, text=text_of(tokens, rng))
            predictor.observe(await predictor.predict(query), int(rng.lognormal(5.0, 1.0)) + 1)

    await asyncio.gather(watch(), serve())
    after = predictor.snapshot()
    asked = after.asked - before.asked
    found = np.array(late) * 1e3
    p50, p99, p999 = np.quantile(found, (0.5, 0.99, 0.999))
    share = (after.late - before.late) / asked if asked else 0.0
    job = float(np.quantile(np.array(jobs) * 1e3, 0.999)) if jobs else 0.0
    return Stall(float(p50), float(p99), float(p999), float(found.max()), share, job)


def _time_jobs(predictor: LengthPredictor, into: list[float]) -> None:
    """Write down the CPU seconds of each of the owner thread's jobs."""
    assert predictor._owner is not None
    learner = predictor._owner._learner

    def timed(job: Callable[P, T]) -> Callable[P, T]:
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            began = thread_time()
            try:
                return job(*arguments, **named)
            finally:
                into.append(thread_time() - began)

        return call

    for name in ("answer", "learn"):
        setattr(learner, name, timed(getattr(type(learner), name).__get__(learner)))


def impatient(predictor: LengthPredictor) -> None:
    """Give it the deadline the product has."""
    predictor._settings = replace(predictor._settings, deadline_s=0.002)


@dataclass(frozen=True, slots=True)
class Memory:
    """In megabytes."""

    imports: float
    """Resident after importing numpy, onnxruntime, hnswlib, tokenizers (libraries, not ours)."""
    start: float
    """Resident on top of it once the predictor has started."""
    full: float
    """And once all models are full."""
    counted: float
    """What `memory_bytes` says then."""
    samples: int
    """Searchable then."""


def resident_mb() -> float:
    """Return this process' resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(models: int, samples: int) -> Memory:
    """Fill a predictor's history in a fresh process and weigh it."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_weigh, (models, samples))


def _weigh(models: int, samples: int) -> Memory:
    imports = resident_mb()

    async def fill() -> tuple[float, float, float, int]:
        predictor = LengthPredictor(PredictorSettings(deadline_s=60.0))
        predictor.start()
        start = resident_mb()
        rng = np.random.default_rng(3)
        for number in range(samples):
            for model in range(models):
                query = PromptQuery(
                    model=f"m{model}",
                    prompt_tokens=60,
                    text=text_of(60, rng),
                    stages=(f"s{number % 40}",),
                )
                tokens = int(rng.lognormal(5.0, 1.0)) + 1
                predictor.observe(predictor.predict_quick(query), tokens)
            if number % 16 == 15:  # few outcomes wait for long
                await predictor.drained()
        await predictor.drained()
        for model in range(models):  # what a search unpacks is touched by none of these before
            query = PromptQuery(model=f"m{model}", prompt_tokens=60, text=text_of(60, rng))
            assert (await predictor.predict(query)).level is Level.SIMILAR
        full = resident_mb()
        held = sum(predictor.snapshot().history_samples.values())
        counted = predictor.memory_bytes() / 2**20
        predictor.close()
        return start, full, counted, held

    start, full, counted, held = asyncio.run(fill())
    return Memory(imports, start - imports, full - imports, counted, held)


@dataclass(frozen=True, slots=True)
class Soak:
    """A tenth of the way, and at the end."""

    requests: int
    minutes: float
    early_mb: float
    end_mb: float
    journal_mb: float


def soak(requests: int) -> Soak:
    """Push outcomes through the levels, the histories and the journal, without embedding."""
    vectors = Vectors(load_embedder())
    histories = Histories(vectors, 10_000, 8, 22_000_000)
    levels = Levels()
    rng = np.random.default_rng(9)
    rows = clustered(20_000, vectors.dim, rng)
    tokens = rng.lognormal(5.0, 1.0, 20_000) + 1
    pages.give_back()  # what making them up took
    early, began = 0.0, perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal", vectors.name, vectors.dim, 40_000)
        journal.open()
        for number in range(requests):
            at = number % len(rows)
            # Ten models in turn with fading stages: every bound is met again and again.
            model = f"m{(number // 50_000) % 3 + number % 7}"
            stage = f"s{number // 1000 % 5000}"
            is_cut = number % 17 == 0
            levels.add(model, stage, 300, tokens[at], is_cut, 1.0)
            place = histories.stage_number(stage)
            sample = Sample(rows[at], float(tokens[at]), is_cut, place)
            _, build = histories.add(model, sample)
            if build is not None:
                build.run()
                build.keep()
            ended = Ended.CAPPED if is_cut else Ended.FINISHED
            journal.append(Record(model, stage, 300, int(tokens[at]), ended, rows[at]))
            if number == requests // 10:
                early = resident_mb()
        journal.close()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    minutes = (perf_counter() - began) / 60
    return Soak(requests, minutes, early, resident_mb(), size / 2**20)
