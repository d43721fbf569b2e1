"""Decisions in words: where a call goes, and every figure that spoke for it."""

from collections.abc import Sequence

from gateway.core.call import Call
from gateway.core.cost import prefill_s, step_s
from gateway.core.load import BackendLoad
from gateway.core.policies.base import Policy
from gateway.core.types import BackendId, Decision


def decision(
    policy: Policy,
    call: Call,
    load: BackendLoad,
    loads: Sequence[BackendLoad],
    scores: Sequence[float],
    full: frozenset[BackendId],
    now: float,
) -> Decision:
    """Return the decision to give the call to `load`, of those `loads` that have these scores."""
    predicted_s = predicted_execution_s(load, call)
    due_s = None if call.budget_s is None else call.ready_at + call.budget_s - now
    return Decision(
        request_id=call.request.id,
        backend_id=load.id,
        decided_at=now,
        policy=policy.name,
        scores=dict(zip([other.id for other in loads], scores, strict=True)),
        full=full,
        order_key=call.order_key,
        queue_s=now - call.came_at,
        predicted_s=predicted_s,
        budget_s=call.budget_s,
        laxity_s=None if due_s is None else due_s - predicted_s,
        output=call.request.output,
    )


def predicted_execution_s(load: BackendLoad, call: Call) -> float:
    """Return how long the call would run on a backend at its present load."""
    profile = load.profile
    context_tokens = load.context_tokens + call.request.prompt_tokens
    step = step_s(profile, load.in_flight + 1, context_tokens)
    ahead_tokens = load.pending_prefill_tokens + load.fresh_tokens(call)
    return prefill_s(profile, ahead_tokens) + max(call.output_tokens - 1, 0) * step
