"""PacedEngine: `sim.EngineModel` in wall time, its calls as something one can wait for."""

import asyncio
from dataclasses import dataclass

from gateway.emulator.asks import Ask, Progress
from gateway.emulator.metrics import EngineCounters, EngineStatus
from gateway.emulator.options import EngineOptions
from gateway.sim.engine import EngineModel
from gateway.sim.engine_calls import EngineCall, FinishedAt, FirstTokenAt

TIMER_S = 0.001
"""Event loops count in milliseconds: a timer may be that early."""


class EngineDied(Exception):
    """The engine crashed, and lost the request."""


class ClientLeft(Exception):
    """The request was abandoned."""


class Generation:
    """The choices of one request, while the engine works on them and until they are told."""

    __slots__ = ("_loss", "_news", "ask", "open", "progress")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.progress = [Progress() for _ in ask.choices]
        self.open: dict[str, _Running] = {}
        """Choices that are not finished, by their id in the engine."""
        self._news = asyncio.Event()
        self._loss: type[EngineDied | ClientLeft] | None = None

    async def news(self) -> None:
        """Wait for the end or, if it streams, for tokens; raise the reason if none will come."""
        await self._news.wait()
        self._news.clear()
        if self._loss is not None:
            raise self._loss

    def wake(self) -> None:
        """There is news."""
        self._news.set()

    def lose(self, loss: type[EngineDied | ClientLeft]) -> None:
        """There will be no more news."""
        self.open.clear()
        self._loss = loss
        self._news.set()


@dataclass(slots=True)
class _Running:
    """One choice in the engine."""

    generation: Generation
    index: int
    submitted_at: float
    first_token_at: float = 0.0


class PacedEngine:
    """One engine on the running event loop.

    Engine time is wall time since the start times `speed`, and stands still during a stall. The
    model decides when a token *is*; the event loop hears of it a millisecond or so later, which
    is why a client at `--speed 20` sees up to 20 engine milliseconds too much.
    """

    def __init__(self, options: EngineOptions, counters: EngineCounters | None = None) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.model = EngineModel(
            options.profile,
            priority_scheduling=options.priority_scheduling,
            prefix_caching=options.prefix_caching,
            max_queued=options.max_calls,
        )
        self.counters = counters or EngineCounters()
        self.is_stopped = False
        self._running: dict[str, _Running] = {}
        self._streaming: dict[str, _Running] = {}
        """Those of them that stream, and have begun."""
        self._submitted = 0
        self._rate = options.speed
        self._wall_base = self._loop.time()
        self._engine_base = 0.0
        self._latest = 0.0
        self._told_at = 0.0
        """Wall time when streams were last told of new tokens."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """Wall time of that timer, and the engine time it stands for."""
        self._due_engine_at = 0.0

    # -- time

    def now(self) -> float:
        """Return the engine's time, in its own seconds since it started."""
        elapsed_s = (self._loop.time() - self._wall_base) * self._rate
        self._latest = max(self._latest, self._engine_base + elapsed_s)
        return self._latest

    def stall(self, is_stalled: bool) -> None:
        """Let time stand still, or go on."""
        self._engine_base = self.now()
        self._wall_base = self._loop.time()
        self._rate = 0.0 if is_stalled else self._options.speed
        self._arm()

    def slow_down(self, factor: float) -> None:
        """Let every step take `factor` times as long."""
        self.model.slow_down(factor, self.now())
        self._arm()

    def _wall_at(self, engine_at: float) -> float:
        return self._wall_base + (engine_at - self._engine_base) / self._rate

    def _arm(self) -> None:
        """Set the timer to what comes next."""
        engine_at = None if self._rate == 0 else self.model.next_event_at()
        if engine_at is None:
            self._disarm()
            return
        due_at = self._wall_at(engine_at)
        if self._streaming:
            step_at = self.model.next_step_at(self.now())
            if step_at is not None and step_at < engine_at:
                chunk_at = max(self._wall_at(step_at), self._told_at + self._options.min_chunk_s)
                if chunk_at < due_at:
                    due_at, engine_at = chunk_at, step_at
        if self._timer is not None:
            if due_at == self._due_at:
                return
            self._timer.cancel()
        self._due_at, self._due_engine_at = due_at, engine_at
        self._timer = self._loop.call_at(due_at, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        # If the timer is early, it is taken for on time.
        self._latest = max(self.now(), self._due_engine_at)
        self._catch_up(self._latest)
        self._arm()

    # -- what servers do

    def start(self, ask: Ask) -> Generation | None:
        """Give the request to the engine; None: its queue is full."""
        now = self.now()
        generation = Generation(ask)
        for choice in ask.choices:
            self._submitted += 1
            call_id = str(self._submitted)
            call = EngineCall(
                call_id,
                choice.prompt_tokens,
                choice.output_tokens,
                choice.prefix,
                ask.priority,
                choice.reserved_tokens,
            )
            if not self.model.submit(call, now):
                self.counters.rejections += 1
                self.abandon(generation)
                return None
            running = _Running(generation, choice.index, now)
            generation.open[call_id] = self._running[call_id] = running
        self._arm()
        return generation

    def abandon(self, generation: Generation) -> None:
        """Forget what is not finished: nobody will read it."""
        now = self.now()
        self._catch_up(now)
        if not generation.open:
            return
        for call_id in generation.open:
            self._forget(call_id, now)
        generation.lose(ClientLeft)
        self._arm()

    def crash(self) -> None:
        """Lose all work and the KV cache; what comes afterwards is served by a fresh engine."""
        now = self.now()
        self._catch_up(now)
        self.model.crash(now)
        lost = {id(running.generation): running.generation for running in self._running.values()}
        self._running.clear()
        self._streaming.clear()
        for generation in lost.values():
            generation.lose(EngineDied)
        self._disarm()

    def stop(self, *, aborts: bool = True) -> None:
        """Start nothing any more. What is running finishes here, with the reason `abort`, or goes
        on to its end.
        """
        self.is_stopped = True
        if not aborts:
            return
        now = self.now()
        self._catch_up(now)
        for call_id, running in list(self._running.items()):
            progress = running.generation.progress[running.index]
            progress.tokens = self.model.output_tokens(call_id, now)
            progress.finish_reason = "abort"
            self.counters.finished["abort"] += 1
            self._forget(call_id, now)
            del running.generation.open[call_id]
            running.generation.wake()
        self._disarm()

    def status(self, http_requests: int) -> EngineStatus:
        """Return what the engine would say of itself."""
        now = self.now()
        self._catch_up(now)
        model = self.model
        return EngineStatus(
            counters=self.counters,
            model=self._options.models[0],
            running=model.running,
            waiting=model.waiting,
            kv_share=model.kv_usage(now),
            kv_reserved_tokens=model.kv_reserved_tokens(now),
            generating_tokens=sum(model.output_tokens(call_id, now) for call_id in self._running),
            preemptions=model.preemptions,
            prefix_queries=model.prefix_queries,
            prefix_hits=model.prefix_hits,
            block_tokens=self._options.profile.block_tokens,
            blocks=model.total_blocks,
            prefix_caching=self._options.prefix_caching,
            http_requests=http_requests,
        )

    def _forget(self, call_id: str, now: float) -> None:
        self.counters.generation_tokens += self.model.output_tokens(call_id, now)
        self.model.abort(call_id, now)
        self._streaming.pop(call_id, None)
        del self._running[call_id]

    # -- what the model tells

    def _catch_up(self, now: float) -> None:
        for event in self.model.advance(now):
            # A call abandoned while its event was on the way is not here any more.
            running = self._running.get(event.call_id)
            if running is None:
                continue
            if isinstance(event, FirstTokenAt):
                self._begin(running, event)
            else:
                self._finish(running, event)
        wall = self._loop.time()
        if self._streaming and wall >= self._told_at + self._options.min_chunk_s - TIMER_S:
            self._told_at = wall
            for call_id, running in self._streaming.items():
                progress = running.generation.progress[running.index]
                tokens = self.model.output_tokens(call_id, now)
                if tokens > progress.tokens:
                    progress.tokens = tokens
                    running.generation.wake()

    def _begin(self, running: _Running, event: FirstTokenAt) -> None:
        ask = running.generation.ask
        running.first_token_at = event.at
        self.counters.prompt_tokens += ask.choices[running.index].prompt_tokens
        self.counters.observe("time_to_first_token_seconds", event.at - running.submitted_at)
        if ask.is_stream:
            running.generation.progress[running.index].tokens = 1
            self._streaming[event.call_id] = running
            running.generation.wake()

    def _finish(self, running: _Running, event: FinishedAt) -> None:
        generation = running.generation
        choice = generation.ask.choices[running.index]
        progress = generation.progress[running.index]
        progress.tokens = event.output_tokens
        progress.cached_tokens = event.cached_tokens
        progress.queue_s = event.started_at - running.submitted_at
        progress.inference_s = event.at - event.started_at
        progress.finish_reason = choice.finish_reason
        self._streaming.pop(event.call_id, None)
        del self._running[event.call_id]
        del generation.open[event.call_id]
        if generation.ask.is_stream or not generation.open:
            generation.wake()
        self._count(running, event)

    def _count(self, running: _Running, event: FinishedAt) -> None:
        counters = self.counters
        ask = running.generation.ask
        choice = ask.choices[running.index]
        decode_s = event.at - running.first_token_at
        counters.cached_tokens += event.cached_tokens
        counters.generation_tokens += event.output_tokens
        counters.finished[choice.finish_reason] += 1
        counters.observe("request_prompt_tokens", choice.prompt_tokens)
        counters.observe("request_generation_tokens", event.output_tokens)
        counters.observe("request_params_n", len(ask.choices))
        counters.observe("request_params_max_tokens", ask.max_tokens)
        counters.observe("e2e_request_latency_seconds", event.at - running.submitted_at)
        counters.observe("request_queue_time_seconds", event.started_at - running.submitted_at)
        counters.observe("request_inference_time_seconds", event.at - event.started_at)
        counters.observe("request_prefill_time_seconds", running.first_token_at - event.started_at)
        counters.observe("request_decode_time_seconds", decode_s)
        counters.observe("request_num_preemptions", event.preemptions)
        counters.observe(
            "request_prefill_kv_computed_tokens", choice.prompt_tokens - event.cached_tokens
        )
        if event.output_tokens > 1:
            gaps = event.output_tokens - 1
            counters.observe("inter_token_latency_seconds", decode_s / gaps, gaps)
            counters.observe("request_time_per_output_token_seconds", decode_s / gaps)
