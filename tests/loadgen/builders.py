"""Valid objects of the load generator, with the one thing that matters."""

from collections.abc import Sequence

from gateway.sim.trace import TraceCall, TraceStep, TraceWorkflow
from loadgen.records import OK, CallRecord, Run, WorkflowRecord


def a_trace_call(
    stage: str = "draft",
    *,
    prompt_tokens: int = 100,
    output_tokens: int = 10,
    template: str | None = None,
    template_tokens: int = 0,
) -> TraceCall:
    return TraceCall(
        stage=stage,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        template=template,
        template_tokens=template_tokens,
    )


def a_trace_workflow(
    *steps: Sequence[TraceCall],
    tool_s: float = 0.0,
    arrival_s: float | None = None,
    deadline_s: float | None = None,
) -> TraceWorkflow:
    return TraceWorkflow(
        name="drafting",
        steps=tuple(
            TraceStep(calls=tuple(calls), tool_s=tool_s) for calls in steps or [[a_trace_call()]]
        ),
        arrival_s=arrival_s,
        deadline_s=deadline_s,
    )


def a_call_record(
    index: int = 0,
    *,
    step: int = 0,
    stage: str = "draft",
    due_at_s: float = 0.0,
    lag_s: float = 0.0,
    latency_s: float = 1.0,
    ttft_s: float | None = None,
    output_tokens: int = 10,
    outcome: str = OK,
) -> CallRecord:
    sent_at_s = due_at_s + lag_s
    return CallRecord(
        id=f"w{index}-{step}",
        workflow_id=f"w{index}",
        workflow_index=index,
        step=step,
        stage=stage,
        prompt_tokens=100,
        output_tokens=output_tokens,
        usage_prompt_tokens=100,
        usage_output_tokens=output_tokens,
        due_at_s=due_at_s,
        sent_at_s=sent_at_s,
        first_token_at_s=None if ttft_s is None else sent_at_s + ttft_s,
        ended_at_s=sent_at_s + latency_s,
        outcome=outcome,
    )


def a_workflow_record(
    index: int = 0,
    *,
    arrival_s: float = 0.0,
    latency_s: float = 1.0,
    deadline_s: float = 10.0,
    outcome: str = OK,
) -> WorkflowRecord:
    return WorkflowRecord(
        id=f"w{index}",
        index=index,
        name="drafting",
        arrival_s=arrival_s,
        ended_at_s=arrival_s + latency_s,
        deadline_s=deadline_s,
        outcome=outcome,
    )


def a_run(
    latencies_s: Sequence[float | None],
    *,
    policy: str = "base",
    qps: float | None = 1.0,
    seed: int = 1,
    plan: str = "plan",
) -> Run:
    """A workflow a second with one call each; None fails after a second."""
    run = Run(policy=policy, qps=qps, seed=seed, plan=plan, planned=len(latencies_s))
    for index, latency_s in enumerate(latencies_s):
        outcome = OK if latency_s is not None else "connect"
        took_s = 1.0 if latency_s is None else latency_s
        run.workflows.append(
            a_workflow_record(index, arrival_s=index, latency_s=took_s, outcome=outcome)
        )
        run.calls.append(a_call_record(index, due_at_s=index, latency_s=took_s, outcome=outcome))
    return run
