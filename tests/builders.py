"""Valid objects with one thing that matters."""

from itertools import count

from gateway.core.call import Call
from gateway.core.lengths import LengthDistribution
from gateway.core.profiles import GpuProfile, built_in
from gateway.core.types import (
    ANONYMOUS,
    Backend,
    BackendId,
    InferenceRequest,
    PromptSegment,
    RequestId,
    TenantId,
    WorkflowKey,
    WorkflowRef,
)

MODEL = "m1"


def a_profile(
    name: str = "test",
    *,
    slowness: float = 1.0,
    kv_tokens: int = 100_000,
    max_num_seqs: int = 256,
) -> GpuProfile:
    """Round numbers: 1 ms a prompt token, 100 ms a decode step, KV reads free."""
    return GpuProfile(
        name=name,
        prefill_s_per_token=0.001 * slowness,
        decode_base_s=0.1 * slowness,
        kv_read_s_per_token=0.0,
        step_overhead_s=0.0,
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
    )


def a_backend(
    name: str = "b",
    *,
    profile: GpuProfile | None = None,
    models: frozenset[str] = frozenset({MODEL}),
    max_in_flight: int | None = None,
    priority_scheduling: bool = False,
    weight: float = 1.0,
) -> Backend:
    """A backend that serves `m1`."""
    return Backend(
        id=BackendId(name),
        models=models,
        profile=profile or a_profile(),
        max_in_flight=max_in_flight,
        priority_scheduling=priority_scheduling,
        weight=weight,
    )


def a_gpu(name: str, gpu: str) -> Backend:
    """A backend with a built-in profile whose engine takes priorities."""
    return a_backend(name, profile=built_in(gpu), priority_scheduling=True)


def a_request(
    name: str = "r",
    *,
    model: str = MODEL,
    prompt_tokens: int = 100,
    answer_tokens: float = 10,
    output: LengthDistribution | None = None,
    tenant: TenantId = ANONYMOUS,
    flow: str = "",
    prefix: tuple[PromptSegment, ...] = (),
    workflow: WorkflowRef | None = None,
    deadline_at: float | None = None,
    priority: int = 0,
    eligible: frozenset[BackendId] | None = None,
    first_seen_at: float | None = None,
    reports_first_token: bool = True,
    body_bytes: int = 0,
    queue_timeout_s: float | None = None,
) -> InferenceRequest:
    """A request whose answer length is known unless `output` says otherwise."""
    return InferenceRequest(
        id=RequestId(name),
        model=model,
        prompt_tokens=prompt_tokens,
        output=output or LengthDistribution.point(answer_tokens),
        tenant=tenant,
        flow=flow,
        prefix=prefix,
        workflow=workflow,
        deadline_at=deadline_at,
        priority=priority,
        eligible=eligible,
        first_seen_at=first_seen_at,
        reports_first_token=reports_first_token,
        body_bytes=body_bytes,
        queue_timeout_s=queue_timeout_s,
    )


def a_workflow(
    name: str = "w",
    *,
    template: str | None = "t",
    stage: str | None = None,
    deadline_s: float | None = None,
    final: bool = False,
    tenant: TenantId = ANONYMOUS,
) -> WorkflowRef:
    """What a call says of its workflow."""
    return WorkflowRef(
        key=WorkflowKey(tenant, name),
        name=template,
        stage=stage,
        deadline_s=deadline_s,
        final=final,
    )


_SEQUENCE = count(1)


def a_call(
    name: str = "r",
    *,
    request: InferenceRequest | None = None,
    order_key: float = 0.0,
    charged_s: float = 1.0,
    arrived_at: float = 0.0,
    tenant: str = ANONYMOUS,
    flow: str = "",
    priority: int = 0,
) -> Call:
    """A call as the scheduler keeps it; of two, the one built later came later."""
    request = request or a_request(name, tenant=TenantId(tenant), flow=flow, priority=priority)
    return Call(
        request=request,
        sequence=next(_SEQUENCE),
        arrived_at=arrived_at,
        came_at=arrived_at,
        ready_at=arrived_at,
        prefix_tokens=sum(tokens for _, tokens in request.prefix),
        output_tokens=max(round(request.output.mean_tokens), 1),
        further_tokens=request.further_tokens,
        deadline_at=request.deadline_at,
        order_key=order_key,
        charged_s=charged_s,
    )
