"""The Desk: where a call that has been read gets its turn, and what it is charged there.

Everything that knows of other calls is behind it: limits, predictions, first tries, the scheduler.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.api.calls import Asked
from gateway.api.explain import explain
from gateway.api.first_tries import FirstTries, Try
from gateway.api.lesson import Lesson, Outline, School, Told
from gateway.api.limits import Account
from gateway.api.said import TTFT_DEADLINE_S_PER_TOKEN
from gateway.api.tenants import Caller
from gateway.backends.base import Answer, BackendError, Call, Header
from gateway.core.commands import Start
from gateway.core.lengths import LengthDistribution
from gateway.core.types import BackendId, InferenceRequest, RequestId, TenantId, WorkflowRef
from gateway.runtime.clock import Clock
from gateway.runtime.driver import Driver
from gateway.runtime.run import Refused
from gateway.telemetry.histogram import SHORT, Histogram

if TYPE_CHECKING:  # workers have no predictor, and no use for what it imports
    from gateway.predictor.predictor import LengthPredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A call as the desk needs to know it."""

    id: RequestId
    request_id: str
    """As its client calls it."""
    tenant: TenantId
    outline: Outline
    able: frozenset[BackendId]
    """Backends that could serve it."""
    began_at: float
    flow: str = ""
    workflow: WorkflowRef | None = None
    deadline_s: float | None = None
    """From its first try."""
    ttft_s: float | None = None
    priority: int = 0
    queue_timeout_s: float | None = None
    """None: as for every call."""
    retries: Try | None = None
    """What it says it tries again."""
    body_bytes: int = 0
    streams: bool = False
    explains: bool = False


def arrival_of(
    own_id: str,
    request_id: str,
    asked: Asked,
    outline: Outline,
    tenant: TenantId,
    *,
    able: frozenset[BackendId],
    began_at: float,
    body: bytes,
    queue_timeout_s: float | None,
) -> Arrival:
    """Return what the desk is told of a call."""
    said = asked.said
    return Arrival(
        id=RequestId(own_id),
        request_id=request_id,
        tenant=tenant,
        outline=outline,
        able=able,
        began_at=began_at,
        flow=said.flow,
        workflow=said.workflow,
        deadline_s=said.deadline_s,
        ttft_s=said.ttft_s,
        priority=asked.priority,
        queue_timeout_s=queue_timeout_s,
        retries=Try.of(tenant, body) if said.is_retry else None,
        body_bytes=len(body),
        streams=asked.stream,
        explains=said.explain,
    )


class Turn(NamedTuple):
    """An answer that has begun, and what of its way is told."""

    answer: Answer
    backend_id: BackendId
    decided_at: float
    queue_s: float
    headers: list[Header]
    """The key's limits and, if it was asked for, the decision."""


class Desk(Protocol):
    """Gives calls their turns."""

    async def serve(
        self,
        arrival: Arrival,
        caller: Caller,
        call: Call,
        body: bytes,
        relay: Callable[[Turn], Awaitable[None]],
    ) -> None:
        """Have the call scheduled and sent, and its answer relayed.

        Raises ApiError, Refused or BackendError. However it is left, the books are balanced.
        """


class Register:
    """What is known of calls, and charged to those that come. One for all calls there are."""

    def __init__(
        self,
        predictor: "LengthPredictor",
        clock: Clock,
        expect: Callable[[str, str], None] = lambda *_: None,
        introduce: Callable[[RequestId, str, str], None] | None = None,
        is_full: Callable[[TenantId, str, int], bool] = lambda *_: False,
    ) -> None:
        self.introduce = introduce
        """Is told the id, the path and the `traceparent` of calls before they arrive."""
        self.is_full = is_full
        """Whether one more call of a tenant, for a model, of so many bytes could not wait."""
        self.clock = clock
        self.school = School(predictor, clock)
        self.first_tries = FirstTries()
        self.expect = expect
        """Is told the gateway's and the client's id of the request that arrives next."""
        self.overhead_s = Histogram(SHORT)
        """From a request that was read to its arrival at the scheduler: parsed and predicted."""

    def enter(self, arrival: Arrival, account: Account) -> "Entry":
        """Charge a call that comes; ApiError 429 if its key's limits forbid it."""
        return Entry(self, arrival, account)


class Entry:
    """One call in the register. It must be closed, however the call ends."""

    def __init__(self, register: Register, arrival: Arrival, account: Account) -> None:
        self._register = register
        self._arrival = arrival
        self._account = account
        clock, retries = register.clock, arrival.retries
        now = clock.now()
        self._first_at = register.first_tries.of(retries, now) if retries is not None else None
        self.lesson = Lesson(register.school, arrival.outline, arrival.began_at)
        self._permit = account.enter(self.lesson.prompt_tokens, now)

    def ask(self) -> bool:
        """Have the answer predicted by what is known at once; return whether more is worth a wait.

        A call that will most likely be turned away is not worth it: in an overload that would take
        from the others what makes them fast.
        """
        arrival = self._arrival
        return self.lesson.ask() and not self._register.is_full(
            arrival.tenant, arrival.outline.model, arrival.body_bytes
        )

    def request(self) -> InferenceRequest:
        """Charge the answer that the lesson predicts; ApiError 429 if it is too much for the key.

        The request must arrive at once.
        """
        output = self.lesson.output
        register, arrival = self._register, self._arrival
        now = register.clock.now()
        self._permit.expect(output.mean_tokens, now)
        register.overhead_s.observe(now - arrival.began_at)
        register.expect(arrival.id, arrival.request_id)
        return InferenceRequest(
            id=arrival.id,
            model=arrival.outline.model,
            prompt_tokens=self.lesson.prompt_tokens,
            output=output,
            tenant=arrival.tenant,
            flow=arrival.flow,
            prefix=self.lesson.prefix(),
            workflow=arrival.workflow,
            deadline_at=self._deadline_at(output),
            priority=arrival.priority,
            eligible=arrival.able,
            first_seen_at=self._first_at,
            body_bytes=arrival.body_bytes,
            further_tokens=self.lesson.further_tokens,
            reports_first_token=arrival.streams,
            queue_timeout_s=arrival.queue_timeout_s,
        )

    def headers(self, start: Start, alpha: float | None) -> list[Header]:
        """Return what its client is told besides the answer."""
        headers = self._account.headers(self._register.clock.now())
        return headers + explain(start, alpha) if self._arrival.explains else headers

    def refused(self, this: Try) -> None:
        """It was turned away: it costs nothing, and its client may try again."""
        self._permit.refund(self._register.clock.now())
        self._remember(this)

    def failed(self, this: Try) -> None:
        """It was not answered, or not to the end; its client may try again."""
        self._permit.settle(0, self._register.clock.now())
        self._remember(this)

    def close(self, told: Told | None) -> None:
        """Charge what was used, and learn. None: there was no answer."""
        if told is not None:
            if told.is_complete and self._arrival.retries is not None:
                self._register.first_tries.forget(self._arrival.retries)
            self._permit.settle(self.lesson.used_tokens(told), self._register.clock.now())
            self.lesson.learn(told)
        self._permit.close()

    def _remember(self, this: Try) -> None:
        self._register.first_tries.remember(this, self._first_at or self._arrival.began_at)

    def _deadline_at(self, output: LengthDistribution) -> float | None:
        arrival = self._arrival
        deadline_s = arrival.deadline_s
        if deadline_s is None and arrival.ttft_s is not None:
            deadline_s = arrival.ttft_s + output.mean_tokens * TTFT_DEADLINE_S_PER_TOKEN
        if deadline_s is None:
            return None
        return (arrival.began_at if self._first_at is None else self._first_at) + deadline_s


class LocalDesk:
    """The desk of a gateway that is one process."""

    def __init__(
        self, driver: Driver, register: Register, alpha: Callable[[], float | None]
    ) -> None:
        self._driver = driver
        self._register = register
        self._alpha = alpha

    async def serve(
        self,
        arrival: Arrival,
        caller: Caller,
        call: Call,
        body: bytes,
        relay: Callable[[Turn], Awaitable[None]],
    ) -> None:
        """See Desk."""
        entry = self._register.enter(arrival, caller.account)
        if self._register.introduce is not None:
            self._register.introduce(arrival.id, call.path, call.header("traceparent"))
        answer: Answer | None = None
        try:
            if entry.ask():
                await entry.lesson.wait()
            async with self._driver.run(entry.request(), call) as served:
                answer, start = served
                decision = start.decision
                headers = entry.headers(start, self._alpha())
                await relay(
                    Turn(answer, start.backend_id, decision.decided_at, decision.queue_s, headers)
                )
        except Refused:
            entry.refused(Try.of(arrival.tenant, body))
            raise
        except BackendError:
            entry.failed(Try.of(arrival.tenant, body))
            raise
        finally:
            entry.close(answer)
