"""The driver carries out what the scheduler wants, and the books balance whatever goes wrong."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.backends.base import (
    BackendError,
    Call,
    ConnectFailed,
    ConnectionBroken,
    Listener,
    Usage,
)
from gateway.core.admission import QueueLimits
from gateway.core.breaker import HealthRules
from gateway.core.commands import Command, Settle, Start
from gateway.core.events import (
    BackendChanged,
    Event,
    FirstToken,
    Progressed,
    TimePassed,
    WorkflowCancelled,
)
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import (
    ANONYMOUS,
    BackendId,
    BackendState,
    InferenceRequest,
    WorkflowKey,
    WorkflowRef,
)
from gateway.runtime.driver import Driver
from gateway.runtime.run import Refused
from tests.builders import a_backend, a_request
from tests.virtual_time import VirtualClock, run_in_virtual_time, sleep_until

POLICY = policy_from_name("round_robin+fcfs")


@dataclass
class Script:
    """How a scripted backend answers one call: pauses, tokens, and perhaps a failure."""

    open_s: float = 0.0
    chunks: int = 3
    chunk_s: float = 0.0
    fails_open: BackendError | None = None
    fails_after: int | None = None


class ScriptedAnswer:
    """An answer that follows a script."""

    status = 200
    headers = ()
    whole = None
    finish_reason = "stop"
    made_id = None

    def __init__(self, script: Script, listener: Listener) -> None:
        self._script = script
        self._listener = listener
        self._sent = 0
        self.ended = False
        self.closed = False

    @property
    def is_complete(self) -> bool:
        return self.ended

    @property
    def usage(self) -> Usage:
        return Usage(self._sent)

    async def read(self) -> bytes:
        await asyncio.sleep(self._script.chunk_s)
        if self._sent == self._script.fails_after:
            raise ConnectionBroken
        self._sent += 1
        if self._sent == 1:
            self._listener.first_token()
        if self._sent == self._script.chunks:
            self.ended = True
            self._listener.finished(self.usage)
        return b"x"

    async def flow(self, write: Callable[[bytes], bool]) -> None:
        """Leave all to `read`."""

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class ScriptedBackend:
    """A backend that follows scripts, one a call, the last for ever."""

    scripts: list[Script] = field(default_factory=lambda: [Script()])
    answers: list[ScriptedAnswer] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    cancelled: int = 0

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> ScriptedAnswer:
        del call, engine_priority
        self.attempts.append(attempt)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            await asyncio.sleep(script.open_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if script.fails_open is not None:
            raise script.fails_open
        answer = ScriptedAnswer(script, listener)
        self.answers.append(answer)
        return answer

    async def close(self) -> None:
        pass


class Bench:
    """A driver over scripted backends `a`, `b`, …, and its log."""

    def __init__(
        self,
        *backends: ScriptedBackend,
        slots: int | None = None,
        timeout_s: float = 120.0,
        health: HealthRules | None = None,
    ) -> None:
        names = [BackendId(name) for name in "abc"[: len(backends)]]
        self.scheduler = Scheduler(
            [a_backend(name, max_in_flight=slots) for name in names],
            POLICY,
            limits=QueueLimits(timeout_s=timeout_s),
            health=health,
        )
        self.log: list[tuple[float, Event, Sequence[Command]]] = []
        self.driver = Driver(
            self.scheduler,
            dict(zip(names, backends, strict=True)),
            VirtualClock(),
            [lambda now, event, commands: self.log.append((now, event, list(commands)))],
        )

    async def ask(self, request: InferenceRequest) -> int:
        """Return how many chunks a client got."""
        got = 0
        call = Call(path="/v1/completions", body=b"{}")
        async with self.driver.run(request, call) as served:
            while not served.answer.ended:
                got += len(await served.answer.read())
        return got

    def commands(self, kind: type[Command]) -> list[Command]:
        return [c for _, _, commands in self.log for c in commands if isinstance(c, kind)]

    def outcomes(self) -> dict[str, Outcome]:
        settled = [c for c in self.commands(Settle) if isinstance(c, Settle)]
        assert len({settle.request_id for settle in settled}) == len(settled)
        return {settle.request_id: settle.outcome for settle in settled}

    def is_quiet(self) -> bool:
        """Nothing waits, nothing runs, nobody is registered."""
        loads = self.scheduler.fleet.loads.values()
        return (
            self.driver.in_flight == self.scheduler.waiting == self.scheduler.running == 0
            and all(load.in_flight == 0 and load.backlog_s == 0 for load in loads)
        )


def test_an_answer_goes_from_its_backend_to_the_client_and_settles_once() -> None:
    bench = Bench(ScriptedBackend())

    assert run_in_virtual_time(bench.ask(a_request("r"))) == 3

    assert bench.outcomes() == {"r": Outcome.COMPLETED}
    assert any(isinstance(event, FirstToken) for _, event, _ in bench.log)
    assert bench.is_quiet()


def test_the_slot_is_free_as_soon_as_the_engine_has_finished_not_when_the_client_has_read() -> None:
    bench = Bench(ScriptedBackend([Script(chunks=1)]), slots=1)

    async def main() -> None:
        async with bench.driver.run(a_request("r"), Call(path="/", body=b"{}")) as served:
            await served.answer.read()
            assert bench.outcomes() == {"r": Outcome.COMPLETED}
            await asyncio.sleep(60)

    run_in_virtual_time(main())

    assert bench.is_quiet()


def test_a_failure_before_the_first_byte_is_tried_again_elsewhere() -> None:
    broken = ScriptedBackend([Script(fails_open=ConnectionBroken())])
    sound = ScriptedBackend()
    bench = Bench(broken, sound)

    assert run_in_virtual_time(bench.ask(a_request("r"))) == 3

    starts = [c for c in bench.commands(Start) if isinstance(c, Start)]
    assert [(start.backend_id, start.attempt) for start in starts] == [("a", 1), ("b", 2)]
    assert sound.attempts == [2]
    assert bench.outcomes() == {"r": Outcome.COMPLETED}
    assert bench.is_quiet()


def test_a_failure_after_the_first_byte_is_told_and_never_tried_again() -> None:
    bench = Bench(ScriptedBackend([Script(fails_after=1)]), ScriptedBackend())

    with pytest.raises(ConnectionBroken):
        run_in_virtual_time(bench.ask(a_request("r")))

    assert len(bench.commands(Start)) == 1
    assert bench.outcomes() == {"r": Outcome.FAILED}
    assert bench.is_quiet()


def test_a_call_is_asked_back_from_an_engine_that_hangs_and_answered_elsewhere() -> None:
    hung, sound = ScriptedBackend([Script(open_s=1000.0)]), ScriptedBackend()
    bench = Bench(hung, sound, health=HealthRules(stall_s=5.0))

    async def main() -> tuple[int, float]:
        return await bench.ask(a_request("r")), asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == (3, 10.0)
    assert (hung.cancelled, hung.attempts, sound.attempts) == (1, [1], [2])
    assert bench.outcomes() == {"r": Outcome.COMPLETED}
    assert bench.is_quiet()


def test_a_client_that_leaves_as_its_call_is_asked_back_has_left() -> None:
    hung, sound = ScriptedBackend([Script(open_s=1000.0)]), ScriptedBackend()
    bench = Bench(hung, sound, health=HealthRules(stall_s=5.0))

    async def main() -> None:
        leaving = asyncio.ensure_future(bench.ask(a_request("r")))
        await sleep_until(9.0)
        asyncio.get_running_loop().call_at(10.0, leaving.cancel)
        with pytest.raises(asyncio.CancelledError):
            await leaving

    run_in_virtual_time(main())

    assert sound.attempts == []
    assert bench.outcomes() == {"r": Outcome.ABANDONED}
    assert bench.is_quiet()


def test_an_answer_that_has_begun_is_not_asked_back() -> None:
    quiet, sound = ScriptedBackend([Script(chunk_s=30.0)]), ScriptedBackend()
    bench = Bench(quiet, sound, health=HealthRules(stall_s=5.0))

    assert run_in_virtual_time(bench.ask(a_request("r"))) == 3

    assert (quiet.attempts, sound.attempts) == ([1], [])


def test_when_every_attempt_fails_the_client_is_told_the_last_failure() -> None:
    backends = [ScriptedBackend([Script(fails_open=ConnectionBroken())]) for _ in range(3)]
    bench = Bench(*backends)

    with pytest.raises(ConnectionBroken):
        run_in_virtual_time(bench.ask(a_request("r")))

    assert sorted(backend.attempts for backend in backends) == [[1], [2], [3]]
    assert bench.outcomes() == {"r": Outcome.FAILED}
    assert bench.is_quiet()


def test_a_failed_call_does_not_wait_for_a_fleet_that_is_down() -> None:
    bench = Bench(ScriptedBackend([Script(fails_open=ConnectFailed())]))
    gone_down = BackendChanged(a_backend("a"), BackendState.DOWN)

    async def main() -> float:
        asyncio.get_running_loop().call_soon(bench.driver.feed, gone_down)
        with pytest.raises(ConnectFailed):
            await bench.ask(a_request("r"))
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 0.0
    assert bench.outcomes() == {"r": Outcome.FAILED}


@pytest.mark.parametrize(
    ("leaves_at", "script"),
    [
        pytest.param(0.5, Script(open_s=1.0), id="while the engine reads the prompt"),
        pytest.param(1.5, Script(open_s=1.0, chunk_s=1.0), id="before the first chunk"),
        pytest.param(2.5, Script(open_s=1.0, chunk_s=1.0), id="in mid-stream"),
    ],
)
def test_a_client_that_leaves_takes_its_work_with_it(leaves_at: float, script: Script) -> None:
    backend = ScriptedBackend([script])
    bench = Bench(backend, slots=1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(bench.ask(a_request("leaves")))
            staying = tasks.create_task(bench.ask(a_request("stays")))
            await sleep_until(leaves_at)
            leaving.cancel()
        assert staying.result() == 3

    run_in_virtual_time(main())

    assert bench.outcomes() == {"leaves": Outcome.ABANDONED, "stays": Outcome.COMPLETED}
    assert backend.cancelled == (1 if leaves_at < 1 else 0)
    assert all(answer.closed for answer in backend.answers)
    assert bench.is_quiet()


def test_a_client_that_leaves_the_queue_is_never_sent_to_an_engine() -> None:
    backend = ScriptedBackend([Script(open_s=3.0)])
    bench = Bench(backend, slots=1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.ask(a_request("runs")))
            waiting = tasks.create_task(bench.ask(a_request("waits")))
            await sleep_until(1.0)
            waiting.cancel()

    run_in_virtual_time(main())

    assert len(backend.attempts) == 1
    assert bench.outcomes() == {"runs": Outcome.COMPLETED, "waits": Outcome.ABANDONED}
    assert bench.is_quiet()


def test_a_turn_given_in_the_tick_in_which_its_client_leaves_harms_nobody() -> None:
    backend = ScriptedBackend([Script(open_s=1.0, chunks=1)])
    bench = Bench(backend, slots=1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(bench.ask(a_request("first")))
            second = tasks.create_task(bench.ask(a_request("second")))
            third = tasks.create_task(bench.ask(a_request("third")))
            await sleep_until(0.5)
            # Both go at once: the slot of the first falls to the second, which is leaving too.
            first.cancel()
            second.cancel()
        assert third.result() == 1

    run_in_virtual_time(main())

    assert bench.outcomes() == {
        "first": Outcome.ABANDONED,
        "second": Outcome.ABANDONED,
        "third": Outcome.COMPLETED,
    }
    assert bench.is_quiet()


def test_who_waits_too_long_is_told_so_at_that_very_instant() -> None:
    bench = Bench(ScriptedBackend([Script(open_s=10.0)]), slots=1, timeout_s=2.0)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.ask(a_request("runs")))
            await sleep_until(0.25)
            with pytest.raises(Refused) as refused:
                await bench.ask(a_request("waits"))
            assert refused.value.reason is RejectReason.QUEUE_TIMEOUT
            assert asyncio.get_running_loop().time() == 2.25

    run_in_virtual_time(main())

    assert [now for now, event, _ in bench.log if isinstance(event, TimePassed)] == [2.25]
    assert bench.outcomes()["waits"] is Outcome.EVICTED
    assert bench.is_quiet()


def test_cancelling_a_workflow_stops_what_runs_and_tells_its_clients_why() -> None:
    backend = ScriptedBackend([Script(chunk_s=1.0, chunks=100)])
    bench = Bench(backend, slots=1)
    key = WorkflowKey(ANONYMOUS, "w")
    ref = WorkflowRef(key=key)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            clients = [
                tasks.create_task(_refusal(bench, a_request(name, workflow=ref)))
                for name in ("runs", "waits")
            ]
            await sleep_until(2.5)
            bench.driver.feed(WorkflowCancelled(key))
        assert [client.result() for client in clients] == [RejectReason.WORKFLOW_CANCELLED] * 2
        assert asyncio.get_running_loop().time() == 2.5

    run_in_virtual_time(main())

    assert set(bench.outcomes().values()) == {Outcome.CANCELLED}
    assert len(backend.attempts) == 1
    assert all(answer.closed for answer in backend.answers)
    assert bench.is_quiet()


async def _refusal(bench: Bench, request: InferenceRequest) -> RejectReason | None:
    try:
        await bench.ask(request)
    except Refused as refused:
        return refused.reason
    return None


def test_a_bug_in_the_caller_leaves_no_work_behind() -> None:
    backend = ScriptedBackend([Script(chunks=5)])
    bench = Bench(backend)

    async def main() -> None:
        async with bench.driver.run(a_request("r"), Call(path="/", body=b"{}")) as served:
            await served.answer.read()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(main())

    assert backend.answers[0].closed
    assert bench.outcomes() == {"r": Outcome.ABANDONED}
    assert bench.is_quiet()


def test_an_unknown_model_is_refused_before_anything_runs() -> None:
    bench = Bench(ScriptedBackend())

    with pytest.raises(Refused) as refused:
        run_in_virtual_time(bench.ask(a_request("r", model="nope")))

    assert refused.value.reason is RejectReason.MODEL_NOT_FOUND
    assert bench.outcomes() == {"r": Outcome.REJECTED}
    assert bench.is_quiet()


def test_progress_is_told_to_the_scheduler() -> None:
    class Tells(ScriptedBackend):
        async def open(
            self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
        ) -> ScriptedAnswer:
            answer = await super().open(
                call, listener, engine_priority=engine_priority, attempt=attempt
            )
            listener.first_token()
            listener.progressed(8)
            return answer

    bench = Bench(Tells())

    run_in_virtual_time(bench.ask(a_request("r")))

    assert [e.output_tokens for _, e, _ in bench.log if isinstance(e, Progressed)] == [8]


def test_a_timeout_counts_as_failed_by_its_kind() -> None:
    late = BackendError(FailureKind.TIMEOUT_FIRST_TOKEN, "late", retryable=False)
    bench = Bench(ScriptedBackend([Script(fails_open=late)]), ScriptedBackend())

    with pytest.raises(BackendError):
        run_in_virtual_time(bench.ask(a_request("r")))

    settle = bench.commands(Settle)[0]
    assert isinstance(settle, Settle)
    assert settle.reason is FailureKind.TIMEOUT_FIRST_TOKEN
    assert len(bench.commands(Start)) == 1
