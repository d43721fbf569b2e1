"""What other processes are sent arrives as it was."""

import copy
import pickle

import pytest

from gateway.core.admission import QueueLimits
from gateway.core.breaker import HealthRules
from gateway.core.lengths import PRIOR
from gateway.core.profiles import GpuProfile
from gateway.core.record import Record
from gateway.core.retries import RetryRules
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import Backend, BackendId, InferenceRequest, RequestId
from gateway.sim.simulator import Fault, FaultKind

PROFILE = GpuProfile(
    name="x",
    prefill_s_per_token=1e-4,
    decode_base_s=0.02,
    kv_read_s_per_token=1e-7,
    step_overhead_s=0.002,
    kv_tokens=50_000,
)

RECORDS: list[Record] = [
    PROFILE,
    Backend(id=BackendId("b"), models=frozenset({"m"}), profile=PROFILE, max_in_flight=3),
    InferenceRequest(id=RequestId("r"), model="m", prompt_tokens=5, output=PRIOR),
    QueueLimits(max_requests=7),
    HealthRules(failures=2),
    RetryRules(),
    WorkflowSpec(name="w", stages=(StageSpec(name="s"),)),
    Fault(at=1.0, backend_id=BackendId("b"), kind=FaultKind.SLOW, factor=2.0),
    PRIOR,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_travels(record: Record) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
