"""Requests: the latest ones, and why each went where it went. An observer; it holds no prompts."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.commands import Command, Evict, Reject, Settle, Start
from gateway.core.events import Arrived, Event, Failed
from gateway.core.load import BackendLoad
from gateway.core.outcomes import FailureKind
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, BackendState, Decision, InferenceRequest

MAX_ENDED = 2000
"""Ended requests that are remembered; those that have not ended are bounded by the queue."""
MAX_ATTEMPTS = 8
"""Attempts of one request that are remembered, the first ones."""


class Absence(StrEnum):
    """Why a backend was no candidate for a call."""

    DOWN = "down"
    DRAINING = "draining"
    BREAKER_OPEN = "breaker_open"
    TRIED = "tried"
    """It has failed this very call before."""
    TOO_SMALL = "too_small"
    """Its KV cache cannot hold the prompt."""
    NOT_OFFERED = "not_offered"
    """It has the model, but not the route."""
    NO_MODEL = "no_model"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One time that a call was sent to a backend."""

    number: int
    decision: Decision
    started_at: float
    absent: dict[BackendId, Absence]
    """Backends that got no score."""
    passed: int
    """How many calls behind it had started before it could."""
    failed_at: float | None = None
    failure: FailureKind | None = None


@dataclass(slots=True, kw_only=True)
class Record:
    """One request: what was known when it came, what was decided, how it ended."""

    id: str
    client_id: str | None
    """The `x-request-id` that its client sent; clients may repeat themselves."""
    model: str
    tenant: str
    workflow_id: str | None
    workflow_name: str | None
    stage: str | None
    arrived_at: float
    prompt_tokens: int
    predicted_tokens: float
    """Mean of the predicted answer length."""
    priority: int
    attempts: list[Attempt] = field(default_factory=list)
    retry_after_s: float | None = None
    settled: Settle | None = None
    """None: it waits or runs."""


class Requests:
    """The requests that have not ended, and the latest that have. Bounded."""

    def __init__(self, scheduler: Scheduler, max_ended: int = MAX_ENDED) -> None:
        self._scheduler = scheduler
        self._max_ended = max_ended
        self._records: dict[str, Record] = {}
        """In order of arrival."""
        self._ended: deque[str] = deque()
        self._by_client: dict[str, str] = {}
        """The latest request of each client's id that is remembered."""
        self._next: tuple[str, str | None] = ("", None)

    def expect(self, request_id: str, client_id: str) -> None:
        """Be told by which id the client knows the request that arrives next."""
        self._next = (request_id, client_id if client_id != request_id else None)

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take down what came, and what was decided."""
        if isinstance(event, Arrived):
            self._arrive(event.request, now)
        elif isinstance(event, Failed):
            self._fail(event, now)
        for command in commands:
            if isinstance(command, Start):
                self._start(command, now)
            elif isinstance(command, Settle):
                self._settle(command)
            elif isinstance(command, Reject | Evict) and command.retry_after_s is not None:
                self._retry_after(command.request_id, command.retry_after_s)

    def get(self, request_id: str) -> Record | None:
        """Return a request by the gateway's id or its client's; of repeated ids, the latest."""
        return self._records.get(request_id) or self._records.get(
            self._by_client.get(request_id, "")
        )

    def latest(self) -> Iterator[Record]:
        """Yield every remembered request, the one that came last first."""
        return reversed(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def _open(self, request_id: str) -> Record | None:
        record = self._records.get(request_id)
        return None if record is None or record.settled is not None else record

    def _arrive(self, request: InferenceRequest, now: float) -> None:
        if self._open(request.id) is not None:
            return  # it is turned away: the id's record is that of the call that has it
        ref = request.workflow
        expected, client_id = self._next
        record = Record(
            id=request.id,
            client_id=client_id if expected == request.id else None,
            model=request.model,
            tenant=request.tenant,
            workflow_id=ref.key.id if ref else None,
            workflow_name=ref.name if ref else None,
            stage=ref.stage if ref else None,
            arrived_at=now,
            prompt_tokens=request.prompt_tokens,
            predicted_tokens=request.output.mean_tokens,
            priority=request.priority,
        )
        self._records[request.id] = record
        if record.client_id is not None:
            self._by_client[record.client_id] = record.id

    def _start(self, start: Start, now: float) -> None:
        record = self._open(start.request_id)
        if record is None or len(record.attempts) >= MAX_ATTEMPTS:
            return
        call = self._scheduler.calls.get(start.request_id)
        record.attempts.append(
            Attempt(
                number=start.attempt,
                decision=start.decision,
                started_at=now,
                absent=self._absent(start, () if call is None else call.tried),
                passed=0 if call is None else call.passed,
            )
        )

    def _absent(self, start: Start, tried: set[BackendId] | tuple[()]) -> dict[BackendId, Absence]:
        loads = self._scheduler.fleet.loads
        scores = start.decision.scores
        if len(loads) == len(scores):
            return {}  # all of them have one
        call = self._scheduler.calls.get(start.request_id)
        if call is None:
            return {}
        return {
            name: absence(load, call.request, has_failed_it=name in tried)
            for name, load in loads.items()
            if name not in scores
        }

    def _fail(self, event: Failed, now: float) -> None:
        record = self._open(event.request_id)
        if record is not None and record.attempts:
            attempt = record.attempts[-1]
            if attempt.failed_at is None:
                attempt.failed_at = now
                attempt.failure = event.kind

    def _retry_after(self, request_id: str, retry_after_s: float) -> None:
        record = self._open(request_id)
        if record is not None:
            record.retry_after_s = retry_after_s

    def _settle(self, settle: Settle) -> None:
        record = self._open(settle.request_id)
        if record is None:
            return
        record.settled = settle
        self._ended.append(record.id)
        if len(self._ended) > self._max_ended:
            oldest = self._records.pop(self._ended.popleft())
            if oldest.client_id is not None and self._by_client.get(oldest.client_id) == oldest.id:
                del self._by_client[oldest.client_id]


def absence(load: BackendLoad, request: InferenceRequest, *, has_failed_it: bool) -> Absence:
    """Return why a backend that got no score got none."""
    if request.model not in load.backend.models:
        return Absence.NO_MODEL
    if request.eligible is not None and load.id not in request.eligible:
        return Absence.NOT_OFFERED
    if load.kv_tokens <= request.prompt_tokens:
        return Absence.TOO_SMALL
    if load.state is BackendState.DOWN:
        return Absence.DOWN
    if load.state is BackendState.DRAINING:
        return Absence.DRAINING
    return Absence.TRIED if has_failed_it else Absence.BREAKER_OPEN
