"""The headers that say why a call went where it went, and how long each part took."""

import orjson

from gateway.backends.base import Header
from gateway.core.commands import Start


def server_timing(decided_at: float, queue_s: float, began_at: float, now: float) -> bytes:
    """Return `Server-Timing`: waiting, the engine up to its first byte, and the rest (ms)."""
    upstream_s = max(now - decided_at, 0.0)
    own_s = max(now - began_at - queue_s - upstream_s, 0.0)
    return b"queue;dur=%.1f, upstream;dur=%.1f, gateway;dur=%.1f" % (
        queue_s * 1000,
        upstream_s * 1000,
        own_s * 1000,
    )


def explain(start: Start, alpha: float | None) -> list[Header]:
    """Return the decision as headers; times in milliseconds, scores lower is better."""
    decision = start.decision
    scores = {str(name): round(score, 6) for name, score in decision.scores.items()}
    headers = [
        (b"x-hexsage-backend", _text(start.backend_id)),
        (b"x-hexsage-policy", _text(decision.policy)),
        (b"x-hexsage-attempt", b"%d" % start.attempt),
        (b"x-hexsage-queue-ms", _ms(decision.queue_s)),
        (b"x-hexsage-predicted-ms", _ms(decision.predicted_s)),
        (b"x-hexsage-output-tokens-p50", b"%d" % round(decision.output_tokens_p50)),
        (b"x-hexsage-output-tokens-p90", b"%d" % round(decision.output_tokens_p90)),
        (b"x-hexsage-scores", orjson.dumps(scores).decode().encode("ascii", "replace")),
    ]
    if decision.budget_s is not None:
        headers.append((b"x-hexsage-budget-ms", _ms(decision.budget_s)))
    if decision.laxity_s is not None:
        headers.append((b"x-hexsage-laxity-ms", _ms(decision.laxity_s)))
    if alpha is not None:
        headers.append((b"x-hexsage-alpha", b"%.4g" % alpha))
    return headers


def _text(value: str) -> bytes:
    return value.encode("ascii", "replace")


def _ms(seconds: float) -> bytes:
    return b"%.1f" % (seconds * 1000)
