"""What goes over the wire comes out as it went in, however it is cut on the way."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.desk import Arrival
from gateway.api.errors import ApiError
from gateway.api.first_tries import Try
from gateway.api.lesson import Outline
from gateway.api.prompts import Sketch
from gateway.backends.base import Usage
from gateway.core.commands import Start
from gateway.core.events import Abandoned, Failed, Finished, FirstToken, Progressed
from gateway.core.outcomes import FailureKind
from gateway.core.types import BackendId, Decision, RequestId, TenantId, WorkflowKey, WorkflowRef
from gateway.predictor.query import PromptQuery
from gateway.workers import wire
from gateway.workers.link import Link
from gateway.workers.wire import Close, Message, Origin, Parted, Told

A = TenantId("a")
ID = RequestId("hs-1")
NOBODY = Origin("", "/v1/chat/completions")
QUERY = PromptQuery(
    model="m1", prompt_tokens=0, stages=("h1+json", "-"), text="né\n\0", max_tokens=7, n=2
)
REF = WorkflowRef(
    key=WorkflowKey(A, "w"), name="text2sql", stage="link", deadline_s=1.5, final=True
)


def an_arrival(**changes: object) -> Arrival:
    given = {
        "id": ID,
        "request_id": "mine",
        "tenant": A,
        "outline": Outline(model="m1"),
        "able": frozenset({BackendId("b0"), BackendId("b1")}),
        "began_at": 12.25,
    }
    return Arrival(**{**given, **changes})  # type: ignore[arg-type]


def over(message: Message) -> wire.Fields:
    """Return a message as it comes."""
    (got,) = wire.messages_of(wire.line_of([message]))
    return got


@pytest.mark.parametrize(
    "arrival",
    [
        pytest.param(an_arrival(), id="the least"),
        pytest.param(
            an_arrival(
                outline=Outline(
                    model="m1",
                    sketch=Sketch(400, 9, ((64, 2**64 - 1), (400, 3))),
                    query=QUERY,
                    session="s",
                ),
                flow="f",
                workflow=REF,
                deadline_s=2.0,
                ttft_s=0.5,
                priority=-3,
                queue_timeout_s=4.0,
                retries=Try.of(A, b"body"),
                body_bytes=5000,
                streams=True,
                explains=True,
            ),
            id="the most",
        ),
        pytest.param(
            an_arrival(outline=Outline(model="m1", prompt_tokens=1500, output_tokens=100)),
            id="a form",
        ),
        pytest.param(an_arrival(outline=Outline(model="m1", is_free=True)), id="free"),
    ],
)
def test_arrivals(arrival: Arrival) -> None:
    origin = Origin("abc", "/v1/completions", "00-a-b-01")

    assert wire.read_arrived(over(wire.arrived(arrival, origin))) == (arrival, origin)


def test_long_texts_are_cut_to_what_is_compared() -> None:
    query = PromptQuery(model="m1", prompt_tokens=0, text="x" * 1_000_000)
    message = wire.arrived(an_arrival(outline=Outline(model="m1", query=query)), NOBODY)

    assert len(wire.line_of([message])) < 70_000


@pytest.mark.parametrize(
    "event",
    [
        FirstToken(ID),
        Progressed(ID, 12),
        Finished(ID, 12, 30, None),
        Failed(ID, FailureKind.RESET, True, 3),
        Abandoned(ID, 2),
    ],
)
def test_facts(event: wire.Fact) -> None:
    assert wire.read_fact(over(wire.fact(event))) == event


@pytest.mark.parametrize(
    ("how", "this", "told"),
    [
        (Close.ANSWERED, None, Parted(Usage(5, 3, 1), True, "length")),
        (Close.FAILED, Try.of(A, b"x"), None),
        (Close.REFUSED, Try.of(A, b"x"), Parted(Usage(5), False, None)),
    ],
)
def test_ends(how: Close, this: Try | None, told: Parted | None) -> None:
    assert wire.read_closed(over(wire.closed(ID, how, this, told))) == (how, this, told)


def test_turns() -> None:
    decision = Decision(
        request_id=ID, backend_id=BackendId("b0"), decided_at=3.5, policy="", queue_s=0.25
    )
    start = Start(ID, BackendId("b0"), -7, decision, 2)
    told = Told([(b"x-ratelimit-limit-requests", b"60"), (b"x-hexsage-backend", b"caf\xe9")], "00")

    assert wire.read_started(over(wire.started(start, told))) == (start, told)


def test_errors() -> None:
    error = ApiError(
        status=429,
        message="Too much.",
        type="rate_limit_error",
        code="token_rate_limit",
        should_retry=True,
        retry_after_s=2.5,
        headers=((b"x-a", b"b"),),
    )
    got = wire.read_error(over(wire.error(ID, error)))

    assert (got.status, got.body(), got.response_headers()) == (
        429,
        error.body(),
        error.response_headers(),
    )


@given(st.lists(st.lists(st.text(max_size=20), max_size=5), min_size=1, max_size=9), st.data())
def test_it_does_not_matter_where_a_connection_cuts(
    said: list[Message], data: st.DataObject
) -> None:
    stream = b"".join(wire.line_of([message]) for message in said)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=6)))
    edges = [0, *cuts, len(stream)]
    heard: list[wire.Fields] = []

    async def hear() -> None:
        link = Link(heard.append, lambda: None, lambda: None)
        for begin, end in pairwise(edges):
            link.data_received(stream[begin:end])

    asyncio.run(hear())
    assert heard == said


@pytest.mark.parametrize("odd", ["\ud800", 1 << 70], ids=["half a character", "a huge number"])
def test_what_engines_say_goes_over_however_odd_it_is(odd: object) -> None:
    told = Parted(Usage(3), True, odd if isinstance(odd, str) else "stop")
    if isinstance(odd, int):
        told = Parted(Usage(odd), True, "stop")

    assert wire.read_closed(over(wire.closed(ID, Close.ANSWERED, None, told)))[2] == told
