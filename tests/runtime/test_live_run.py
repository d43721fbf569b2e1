"""The live half of parity: a trace goes through the driver at its very instants."""

from gateway.core.commands import Settle, Start
from gateway.core.events import Arrived, Finished
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId
from tests.builders import a_backend, a_request
from tests.runtime.live_run import run_live
from tests.virtual_time import run_in_virtual_time

B = BackendId("b")


def test_events_happen_when_the_trace_and_the_service_times_say() -> None:
    scheduler = Scheduler([a_backend(B, max_in_flight=1)], policy_from_name("round_robin+fcfs"))
    arrivals = [(0.125, a_request("one")), (0.25, a_request("two"))]

    log = run_in_virtual_time(run_live(arrivals, scheduler, [B], lambda _, __: 1.5))

    assert [(at, type(event)) for at, event, _ in log] == [
        (0.125, Arrived),
        (0.25, Arrived),
        (1.625, Finished),
        (3.125, Finished),
    ]
    starts = [(at, c.request_id) for at, _, cs in log for c in cs if isinstance(c, Start)]
    assert starts == [(0.125, "one"), (1.625, "two")]
    assert sum(isinstance(c, Settle) for _, _, cs in log for c in cs) == 2
