"""How a request is told to people in a terminal."""

from io import StringIO

from rich.console import Console

from gateway.api.reasons import whole
from gateway.cli.why import show
from gateway.core.events import Arrived, Event, Failed, Finished
from gateway.core.outcomes import FailureKind
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import ANONYMOUS, Backend, RequestId, WorkflowKey, WorkflowRef
from gateway.telemetry.requests import Requests
from tests.builders import a_backend, a_request


def told(*events: tuple[float, Event], backends: tuple[Backend, ...], now: float) -> str:
    """Play the events; return what is printed of the request `r`."""
    scheduler = Scheduler(backends, policy_from_name("hexsage"))
    requests = Requests(scheduler)
    requests.expect("r", "their-id")
    for at, event in events:
        requests.observe(at, event, scheduler.handle(event, at))
    record = requests.get("r")
    assert record is not None
    text = StringIO()
    show(whole(record, scheduler, now), Console(file=text, width=100, highlight=False))
    return text.getvalue()


def test_an_answered_request_is_told_with_every_attempt() -> None:
    ref = WorkflowRef(key=WorkflowKey(ANONYMOUS, "w-1"), name="text2sql", stage="plan")
    request = a_request("r", answer_tokens=10, workflow=ref)
    text = told(
        (1.0, Arrived(request)),
        (1.5, Failed(RequestId("r"), FailureKind.RESET, retryable=True)),
        (3.0, Finished(RequestId("r"), output_tokens=8)),
        backends=(a_backend("a"), a_backend("b")),
        now=5.0,
    )

    assert text.startswith("their-id  r\ncompleted on b, 2.00 s in all")
    assert "w-1 (text2sql) stage plan" in text
    assert "attempt 1: sent to a" in text
    assert "failed after 500 ms: reset" in text
    assert "attempt 2: sent to b" in text
    assert "it had failed this call before" in text
    assert "10 predicted (P50 10, P90 10), 8 came" in text


def test_a_waiting_request_is_told_with_what_it_waits_for() -> None:
    text = told(
        (0.0, Arrived(a_request("first"))),
        (1.0, Arrived(a_request("r", deadline_at=100.0))),
        backends=(a_backend("a", max_in_flight=1),),
        now=3.0,
    )

    assert "queued" in text
    assert "waits since 2.00 s for a backend with room" in text
    assert "waited       2.00 s" in text
    assert "deadline     99.0 s after arrival, open" in text
    assert "full" in text
