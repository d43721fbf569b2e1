"""Runs a trace through the live driver in virtual time: the half of parity that is not the sim.

    log = run_in_virtual_time(run_live(arrivals, scheduler, service_s))

`arrivals` are (instant, request), `service_s` says how long a request really takes on a backend.
The log is what observers saw: (instant, event, commands).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gateway.backends.base import BackendError, Call, Listener, Usage
from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.core.types import BackendId, InferenceRequest
from gateway.runtime.driver import Driver, SchedulerLike
from gateway.runtime.run import Refused
from tests.virtual_time import VirtualClock, sleep_until

ServiceS = Callable[[InferenceRequest, BackendId], float]
Log = list[tuple[float, Event, Sequence[Command]]]


class TimedAnswer:
    """A complete answer without content."""

    status = 200
    headers = ()
    whole = b"{}"
    ended = is_complete = True
    finish_reason = "stop"
    made_id = None

    def __init__(self, usage: Usage) -> None:
        self.usage = usage

    async def read(self) -> bytes:
        """Return nothing: it is whole."""
        return b""

    async def flow(self, write: Callable[[bytes], bool]) -> None:
        """Leave all to `read`."""

    async def aclose(self) -> None:
        """Do nothing."""


class TimedBackend:
    """A backend that answers after a time and says nothing before."""

    def __init__(self, backend_id: BackendId, service_s: ServiceS) -> None:
        self._id = backend_id
        self._service_s = service_s
        self.requests: dict[str, InferenceRequest] = {}
        self.tokens_of: Callable[[InferenceRequest], int] = lambda request: round(
            request.output.mean_tokens
        )

    async def open(
        self, call: Call, listener: Listener, *, engine_priority: int, attempt: int
    ) -> TimedAnswer:
        """Answer when the time has come."""
        del engine_priority, attempt
        request = self.requests[call.upstream_id]
        now = asyncio.get_running_loop().time()
        await sleep_until(now + self._service_s(request, self._id))
        usage = Usage(self.tokens_of(request))
        listener.finished(usage)
        return TimedAnswer(usage)

    async def close(self) -> None:
        """Do nothing."""


async def run_live(
    arrivals: Iterable[tuple[float, InferenceRequest]],
    scheduler: SchedulerLike,
    backend_ids: Iterable[BackendId],
    service_s: ServiceS,
    tokens_of: Callable[[InferenceRequest], int] | None = None,
) -> Log:
    """Feed the arrivals to a driver at their instants; return its decision log."""
    log: Log = []

    def observe(now: float, event: Event, commands: Sequence[Command]) -> None:
        log.append((now, event, list(commands)))

    backends = {name: TimedBackend(name, service_s) for name in backend_ids}
    driver = Driver(scheduler, backends, VirtualClock(), [observe])

    async def one(at: float, request: InferenceRequest) -> None:
        await sleep_until(at)
        with suppress(Refused, BackendError):
            call = Call(path="/v1/completions", body=b"{}", upstream_id=request.id)
            async with driver.run(request, call):
                pass

    async with asyncio.TaskGroup() as tasks:
        for at, request in arrivals:
            for backend in backends.values():
                backend.requests[request.id] = request
                if tokens_of is not None:
                    backend.tokens_of = tokens_of
            tasks.create_task(one(at, request))
    return log
