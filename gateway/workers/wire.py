"""What workers and the scheduler process tell each other: lists of plain values as JSON (pure).

A message is a list that begins with its kind; what follows is in the order in which it is written
here. Messages of one moment travel together as one line.
"""

from enum import StrEnum
from typing import Any, NamedTuple, cast

from gateway.api import lesson
from gateway.api.desk import Arrival
from gateway.api.errors import ApiError
from gateway.api.first_tries import Try
from gateway.api.lesson import Outline
from gateway.api.prompts import Sketch
from gateway.backends import lenient_json
from gateway.backends.base import Header, Usage
from gateway.core.commands import Start
from gateway.core.events import Abandoned, Event, Failed, Finished, FirstToken, Progressed
from gateway.core.outcomes import FailureKind
from gateway.core.types import BackendId, Decision, RequestId, TenantId, WorkflowKey, WorkflowRef
from gateway.predictor.prompt import bounded
from gateway.predictor.query import PromptQuery

Message = list[object]
Fields = list[Any]
"""A message that has come: it is our own, so it is not checked."""


Fact = FirstToken | Progressed | Finished | Failed | Abandoned
"""What is told of a call that runs."""


class Up(StrEnum):
    """What workers say."""

    ARRIVED = "a"
    FIRST_TOKEN = "t"
    PROGRESSED = "p"
    FINISHED = "f"
    FAILED = "x"
    ABANDONED = "q"
    CLOSED = "e"
    """The worker is done with a call, whatever became of it."""
    KEPT = "k"
    WHO_KEEPS = "w"
    SUSPECT = "s"
    """A call could not connect to a backend."""
    HEARD = "h"
    """A backend's streams go on."""
    VITALS = "v"
    """How the worker is."""


class Down(StrEnum):
    """What the scheduler process says."""

    FLEET = "c"
    START = "s"
    REFUSED = "r"
    ERROR = "l"
    STOP = "o"
    RECALL = "b"
    SETTLED = "z"
    """Nothing more comes for a call whose attempt has failed."""
    ANSWER = "k"
    """To a question, by its number."""


class Parted(NamedTuple):
    """What is left of an answer when its worker is done with it."""

    usage: Usage
    is_complete: bool
    finish_reason: str | None


class Close(StrEnum):
    """What became of a call."""

    ANSWERED = ""
    REFUSED = "r"
    FAILED = "f"


def line_of(messages: list[Message]) -> bytes:
    """Return the messages as one line. In some are words of engines, which may be no text."""
    return lenient_json.dumps(messages) + b"\n"


def messages_of(line: bytes) -> list[Fields]:
    """Return the messages of one line."""
    return cast(list[Fields], lenient_json.loads(line))


# Up


class Origin(NamedTuple):
    """Where a call comes from."""

    key: str
    """The hash of its caller's API key; empty: it has none."""
    path: str
    traceparent: str = ""
    """The client's; empty: none."""


def arrived(arrival: Arrival, origin: Origin) -> Message:
    """Return a call that comes."""
    outline, ref, query = arrival.outline, arrival.workflow, arrival.outline.query
    return [
        Up.ARRIVED,
        list(origin),
        arrival.id,
        arrival.request_id,
        arrival.tenant,
        outline.model,
        *outline.sketch,
        outline.prompt_tokens,
        outline.output_tokens,
        outline.session,
        outline.is_free,
        query and [query.stages, bounded(query.text), query.max_tokens, query.n, query.hint_tokens],
        list(arrival.able),
        arrival.began_at,
        arrival.flow,
        ref and [*ref.key, ref.name, ref.stage, ref.deadline_s, ref.final, ref.is_session],
        arrival.deadline_s,
        arrival.ttft_s,
        arrival.priority,
        arrival.queue_timeout_s,
        arrival.retries and arrival.retries.hex(),
        arrival.body_bytes,
        arrival.streams,
        arrival.explains,
    ]


def read_arrived(fields: Fields) -> tuple[Arrival, Origin]:
    """Return the call, and where it comes from."""
    (
        _, origin, own_id, request_id, tenant, model, text_bytes, extra_tokens, cuts, prompt_tokens,
        output_tokens, session, is_free, query, able, began_at, flow, ref, deadline_s, ttft_s,
        priority, queue_timeout_s, retries, body_bytes, streams, explains,
    ) = fields  # fmt: skip
    outline = Outline(
        model=model,
        sketch=Sketch(text_bytes, extra_tokens, tuple(map(tuple, cuts))),
        query=_query(model, *query) if query else None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        session=session,
        is_free=is_free,
    )
    return Arrival(
        id=own_id,
        request_id=request_id,
        tenant=tenant,
        outline=outline,
        able=frozenset(able),
        began_at=began_at,
        flow=flow,
        workflow=_workflow(*ref) if ref else None,
        deadline_s=deadline_s,
        ttft_s=ttft_s,
        priority=priority,
        queue_timeout_s=queue_timeout_s,
        retries=Try.fromhex(retries) if retries else None,
        body_bytes=body_bytes,
        streams=streams,
        explains=explains,
    ), Origin(*origin)


def _query(
    model: str, stages: list[str], text: str, max_tokens: int | None, n: int, hint: int | None
) -> PromptQuery:
    return PromptQuery(
        model=model,
        prompt_tokens=0,
        stages=tuple(stages),
        text=text,
        max_tokens=max_tokens,
        n=n,
        hint_tokens=hint,
    )


def _workflow(
    tenant: str,
    identity: str,
    name: str | None,
    stage: str | None,
    deadline_s: float | None,
    final: bool,
    is_session: bool,
) -> WorkflowRef:
    return WorkflowRef(
        key=WorkflowKey(TenantId(tenant), identity),
        name=name,
        stage=stage,
        deadline_s=deadline_s,
        final=final,
        is_session=is_session,
    )


def fact(event: Event) -> Message:
    """Return what has happened to a call."""
    match event:
        case FirstToken(request_id):
            return [Up.FIRST_TOKEN, request_id]
        case Progressed(request_id, output_tokens):
            return [Up.PROGRESSED, request_id, output_tokens]
        case Finished(request_id, output_tokens, prompt_tokens, cached_tokens):
            return [Up.FINISHED, request_id, output_tokens, prompt_tokens, cached_tokens]
        case Failed(request_id, kind, retryable, output_tokens):
            return [Up.FAILED, request_id, kind, retryable, output_tokens]
        case Abandoned(request_id, output_tokens):
            return [Up.ABANDONED, request_id, output_tokens]
        case _:
            raise ValueError(f"{type(event).__name__} is no fact of a call")


def read_fact(fields: Fields) -> Fact:
    """Return what has happened to a call."""
    match fields[0]:
        case Up.FIRST_TOKEN:
            return FirstToken(*fields[1:])
        case Up.PROGRESSED:
            return Progressed(*fields[1:])
        case Up.FINISHED:
            return Finished(*fields[1:])
        case Up.FAILED:
            _, request_id, kind, retryable, output_tokens = fields
            return Failed(request_id, FailureKind(kind), retryable, output_tokens)
        case _:
            return Abandoned(*fields[1:])


def closed(
    request_id: RequestId, how: Close, this: Try | None, told: lesson.Told | None
) -> Message:
    """`this` is what was sent, where it may be tried again; `told` what is known of the answer."""
    answer = told and [list(told.usage), told.is_complete, told.finish_reason]
    return [Up.CLOSED, request_id, how, this and this.hex(), answer]


def read_closed(fields: Fields) -> tuple[Close, Try | None, Parted | None]:
    """Return what became of a call."""
    _, _, how, this, told = fields
    parted = Parted(Usage(*told[0]), told[1], told[2]) if told else None
    return Close(how), Try.fromhex(this) if this else None, parted


# Down


class Told(NamedTuple):
    """What comes with a start."""

    headers: list[Header]
    """What the client is told besides the answer."""
    traceparent: str | None = None
    """For the engine, in place of the client's."""


def started(start: Start, told: Told) -> Message:
    """Return the start of an attempt."""
    decision = start.decision
    return [
        Down.START,
        start.request_id,
        start.backend_id,
        start.engine_priority,
        start.attempt,
        decision.decided_at,
        decision.queue_s,
        [[name.decode("latin-1"), value.decode("latin-1")] for name, value in told.headers],
        told.traceparent,
    ]


def read_started(fields: Fields) -> tuple[Start, Told]:
    """Return the start; of the decision it tells no more than when it was made."""
    _, request_id, backend_id, priority, attempt, decided_at, queue_s, headers, traceparent = fields
    decision = Decision(
        request_id=request_id,
        backend_id=BackendId(backend_id),
        decided_at=decided_at,
        policy="",
        queue_s=queue_s,
    )
    start = Start(request_id, backend_id, priority, decision, attempt)
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return start, Told(pairs, traceparent)


def error(request_id: RequestId, error: ApiError) -> Message:
    """Return a refusal that is not the scheduler's."""
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in error.headers]
    return [
        Down.ERROR,
        request_id,
        [error.status, error.message, error.type, error.code, error.param],
        error.should_retry,
        error.retry_after_s,
        headers,
    ]


def read_error(fields: Fields) -> ApiError:
    """Return the refusal."""
    _, _, (status, message, kind, code, param), should_retry, retry_after_s, headers = fields
    return ApiError(
        status=status,
        message=message,
        type=kind,
        code=code,
        param=param,
        should_retry=should_retry,
        retry_after_s=retry_after_s,
        headers=tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
    )
