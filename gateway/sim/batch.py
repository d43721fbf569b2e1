"""What an engine's batch is made of: sequences, those that decode in sum, steps under way (pure).

`EngineModel` decides who is in the batch; here is the arithmetic that lets it jump over steps.
"""

from heapq import heappop, heappush
from math import sqrt

from gateway.core.types import PromptSegment
from gateway.sim.prefix_cache import PrefixLease

NOT_DECODING = -1


class Sequence:
    """A call inside an engine. While it decodes, its counts follow from the batch's steps."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "computed",
        "finish_step",
        "id",
        "lease",
        "offset",
        "output",
        "output_tokens",
        "preemptions",
        "prefix",
        "present",
        "prompt_tokens",
        "reach",
        "shared_blocks",
        "started_at",
        "urgency",
    )

    def __init__(
        self,
        id: str,
        prompt_tokens: int,
        output_tokens: int,
        prefix: tuple[PromptSegment, ...],
        urgency: int,
        arrival: int,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        """How many it will generate."""
        self.prefix = prefix
        self.urgency = urgency
        self.arrival = arrival
        """Its number among the engine's calls: breaks every tie."""
        self.reach = 0
        """Tokens in the KV cache for which it has reserved room."""
        self.present = True
        """Not aborted."""
        self.output = 0
        """Tokens generated; while it decodes, the batch's steps + `offset` instead."""
        self.offset = 0
        self.computed = 0
        """Tokens in the KV cache; while it decodes, one less than prompt + output instead."""
        self.finish_step = NOT_DECODING
        """The batch's step count when it will be done."""
        self.shared_blocks = 0
        """Of its blocks, those that belong to the prefix cache."""
        self.lease: PrefixLease | None = None
        self.cached_tokens = 0
        self.preemptions = 0
        self.started_at = 0.0


class DecodeBatch:
    """The sequences that get one token every step, held as sums that a jump can move on."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.steps = 0
        """Steps taken so far, counted from the engine's start."""
        self.size = 0
        self.kv_tokens = 0
        """Tokens the sequences have in the KV cache."""
        self._phase = [0] * block_tokens
        """How many of them need a new block in steps whose number has this remainder."""
        self._finishing: list[tuple[int, int, Sequence]] = []
        """A heap by (finish_step, arrival); entries whose finish_step is not theirs are stale."""

    def add(self, sequence: Sequence) -> None:
        """Let a sequence decode from now on; all of it but the last token is computed."""
        sequence.offset = sequence.output - self.steps
        sequence.finish_step = sequence.output_tokens - sequence.offset
        self.size += 1
        self.kv_tokens += sequence.computed
        self._phase[(self.steps - sequence.computed) % self._block_tokens] += 1
        heappush(self._finishing, (sequence.finish_step, sequence.arrival, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out and write its counts back."""
        sequence.output = self.steps + sequence.offset
        sequence.computed = sequence.prompt_tokens + sequence.output - 1
        sequence.finish_step = NOT_DECODING
        self.size -= 1
        self.kv_tokens -= sequence.computed
        self._phase[(self.steps - sequence.computed) % self._block_tokens] -= 1

    def move_on(self, steps: int) -> None:
        """Give every sequence this many tokens."""
        self.steps += steps
        self.kv_tokens += self.size * steps

    def next_done(self) -> Sequence | None:
        """Return a sequence that has all its tokens and is still here; of several the oldest."""
        finishing = self._finishing
        while finishing and finishing[0][0] <= self.steps:
            finish_step, _, sequence = heappop(finishing)
            if sequence.finish_step == finish_step:
                return sequence
        return None

    def steps_to_finish(self) -> int:
        """Return the steps until the first sequence finishes; there must be one."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0]:
            heappop(finishing)
        return finishing[0][0] - self.steps

    def blocks_for_next_step(self) -> int:
        """Return how many new KV blocks the next step takes."""
        return self._phase[self.steps % self._block_tokens]

    def blocks_needed(self, steps: int) -> int:
        """Return how many new KV blocks the next `steps` steps take."""
        rounds, rest = divmod(steps, self._block_tokens)
        needed = rounds * self.size
        if rest:
            start = self.steps % self._block_tokens
            end = start + rest
            needed += sum(self._phase[start:end])
            if end > self._block_tokens:
                needed += sum(self._phase[: end - self._block_tokens])
        return needed


class StepRun:
    """Steps under way: one that prefills, or several that only decode, each a little longer."""

    __slots__ = ("_first_s", "_growth_s", "end", "is_decode", "start", "steps")

    def __init__(
        self, start: float, steps: int, first_s: float, growth_s: float, is_decode: bool
    ) -> None:
        self.start = start
        self.steps = steps
        self.is_decode = is_decode
        """Nobody prefills."""
        self._first_s = first_s
        self._growth_s = growth_s
        """By how much each step is longer than the one before."""
        self.end = start + steps * (first_s + growth_s * (steps - 1) / 2)

    def after(self, steps: int) -> float:
        """Return when this many of the steps will be done."""
        if steps >= self.steps:
            return self.end
        return self.start + steps * (self._first_s + self._growth_s * (steps - 1) / 2)

    def done_by(self, now: float) -> int:
        """Return how many steps are done by `now`, which lies before the end."""
        last = self.steps - 1
        if last <= 0 or self.after(1) > now:
            return 0
        # The root of steps * (first + growth * (steps - 1) / 2) = elapsed, then the rounding.
        elapsed_s = now - self.start
        half_s = self._growth_s / 2
        linear_s = self._first_s - half_s
        steps = int(2 * elapsed_s / (linear_s + sqrt(linear_s**2 + 4 * half_s * elapsed_s)))
        if self.after(steps) > now:
            steps -= 1
        elif self.after(steps + 1) <= now:
            steps += 1
        return min(steps, last)

    def cut_short(self, now: float) -> None:
        """End at the first step boundary at or after `now`; a step that has begun is completed."""
        if self.steps > 1:
            steps = self.done_by(now)
            if not steps or self.after(steps) < now:
                steps += 1
            self.end = self.after(steps)
            self.steps = steps
