"""Learner: levels 4-5 as a whole - answer, learn, judge oneself, remember on disk.

Plain calls, no thread of its own: `gateway.predictor.owner` gives it one.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from time import perf_counter, sleep

import numpy as np

from gateway.predictor.calibration import Monitor
from gateway.predictor.chore import Chore
from gateway.predictor.generation import Sample
from gateway.predictor.histograms import tempered
from gateway.predictor.journal import Journal, Record
from gateway.predictor.outcome import Outcome
from gateway.predictor.query import Ended, Level, Mass, Ticket
from gateway.predictor.similar import Similar

MAX_MODELS, STAGES_PER_MODEL = 16, 8
"""Monitors kept: of the most recent models, and of the first busy stages of each."""
MONITOR_BYTES = 10_000
BUSY_STAGE_SAMPLES = 32
SHADOW_EVERY = 8
"""While bypassed, one call in so many is still worked out, to see whether it would pay again."""
TIMED = 512

Numbers = dict[str, float | None]


class Learner:
    """Not thread-safe: one thread calls it."""

    def __init__(self, similar: Similar, journal: Journal | None, seed: int = 0) -> None:
        self._similar, self._journal = similar, journal
        self._draw = np.random.default_rng(seed).random
        self._monitors: OrderedDict[str, Monitor] = OrderedDict()
        self._stages: dict[tuple[str, str], Monitor] = {}
        self._stage_counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._durations_s: deque[float] = deque(maxlen=TIMED)
        self._asked = 0
        self._restoring: Iterator[Record] | None = None

    def answer(self, tickets: Sequence[Ticket]) -> list[tuple[Mass, Level] | None]:
        """Return what similar prompts say of each ticket; None: the stage level stands."""
        began = perf_counter()
        self._similar.embed(tickets)
        answers = [self._answer(ticket) for ticket in tickets]
        took = (perf_counter() - began) / len(tickets)
        self._durations_s.extend([took] * len(tickets))
        return answers

    def _answer(self, ticket: Ticket) -> tuple[Mass, Level] | None:
        self._asked += 1
        monitor = self._monitors.get(ticket.query.model)
        is_bypassed = monitor is not None and monitor.is_bypassed
        if is_bypassed and self._asked % SHADOW_EVERY:
            return None
        level = self._similar.forecast(ticket)
        if level is None or ticket.similar_mass is None:
            return None
        if monitor is not None and monitor.exponent != 1.0:
            ticket.similar_mass = tempered(ticket.similar_mass, monitor.exponent)
        return None if is_bypassed else (ticket.similar_mass, level)

    def learn(self, ticket: Ticket, tokens: float, ended: Ended) -> Chore | None:
        """Take in an outcome; the caller sees to the chore, if there is one."""
        self._judge(ticket, tokens, ended)
        self._similar.embed([ticket])
        chore = self._similar.learn(ticket, tokens, ended is not Ended.FINISHED)
        if self._journal is not None:
            query = ticket.query
            self._journal.append(
                Record(
                    query.model,
                    ticket.stage,
                    query.prompt_tokens,
                    round(tokens),
                    ended,
                    ticket.vector,
                )
            )
        return chore

    def _judge(self, ticket: Ticket, tokens: float, ended: Ended) -> None:
        outcome = Outcome(
            mass=ticket.mass,
            stage_mass=ticket.stage_mass,
            similar_mass=ticket.similar_mass,
            level=ticket.level,
            tokens=tokens,
            ended=ended,
        )
        model = ticket.query.model
        monitor = self._monitors.get(model)
        if monitor is None:
            monitor = self._monitors[model] = Monitor()
            if len(self._monitors) > MAX_MODELS:
                gone, _ = self._monitors.popitem(last=False)
                self._stages = {key: kept for key, kept in self._stages.items() if key[0] != gone}
        else:
            self._monitors.move_to_end(model)
        monitor.add(outcome, self._draw())
        stage = self._stage_monitor((model, ticket.stage))
        if stage is not None:
            stage.add(outcome, self._draw())

    def _stage_monitor(self, key: tuple[str, str]) -> Monitor | None:
        found = self._stages.get(key)
        if found is not None:
            return found
        count = self._stage_counts.pop(key, 0) + 1
        self._stage_counts[key] = count
        if len(self._stage_counts) > 1024:
            self._stage_counts.popitem(last=False)
        if count < BUSY_STAGE_SAMPLES:
            return None
        if sum(model == key[0] for model, _ in self._stages) >= STAGES_PER_MODEL:
            return None
        self._stages[key] = Monitor()
        return self._stages[key]

    def begin_restore(self) -> None:
        """Get ready to read back what an earlier process learned."""
        if self._journal is not None:
            self._restoring = self._journal.read()

    def restore_one(self) -> tuple[bool, Chore | None]:
        """Read back one sample; false once there are no more."""
        if self._restoring is None:
            return False, None
        record = next(self._restoring, None)
        if record is None:
            self._restoring = None
            return False, None
        if record.vector is None:
            return True, None
        number = self._similar.histories.stage_number(record.stage)
        is_cut = record.ended is not Ended.FINISHED
        sample = Sample(record.vector, float(record.tokens), is_cut, number)
        return True, self._similar.add(record.model, sample)

    def flush(self) -> None:
        """Hand what is buffered to the disk."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()

    def history_sizes(self) -> dict[str, int]:
        """Return how many samples can be searched, by model."""
        return self._similar.histories.sizes()

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self._similar.nbytes + MONITOR_BYTES * (len(self._monitors) + len(self._stages))

    def calibration(self) -> dict[str, Numbers]:
        """Return every monitor's numbers: by model, and by "model stage" for busy stages."""
        monitors = dict(self._monitors)
        monitors |= {f"{model} {stage}": kept for (model, stage), kept in self._stages.items()}
        numbers = {}
        for name, monitor in monitors.items():
            numbers[name] = monitor.numbers()
            sleep(0)  # some fifty of these in one go would keep the event loop from running
        return numbers

    def seconds(self) -> tuple[float, float]:
        """Return p50 and p99 of what an answer took lately, on this thread."""
        if not self._durations_s:
            return 0.0, 0.0
        p50, p99 = np.quantile(list(self._durations_s), (0.5, 0.99))
        return float(p50), float(p99)
