"""completion: the default's score, a call's own predicted completion plus the delay it causes.

For a call r on backend m with n calls in flight (`docs/policies.md` has the derivation):

    step = c0 + max(b0, a (n + 1)) + k (KV + in_r)         one decode step with r in the batch
    own  = a (PB + p_r) + o_r x step                       prefills ahead, its own, its decode
    ext  = n (a p_r + o_r k in_r / 2)                      what r costs the n calls there
    S    = 2 (alpha own + (1 - alpha) ext)                 alpha = 0.5: own + ext

PB: prompt tokens there whose first token is not out; KV: prompt and predicted output tokens
there; p_r: r's prompt tokens that are not in m's prefix cache; o_r: its predicted output.

So S = w + x p_r + y o_r + z o_r in_r with four terms that belong to the backend alone: they are
worked out once for each change of it, and a call costs four products a backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.load import BackendLoad
from gateway.core.record import Record


@dataclass(frozen=True, slots=True)
class Completion(Record):
    """alpha = 1 looks after the call alone; alpha = 0 only after those that are there already."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], not {self.alpha}")

    def scores(self, call: Call, loads: Sequence[BackendLoad], turn: int) -> list[float]:
        """Return seconds, own and caused, for each backend."""
        del turn
        alpha = self.alpha
        prompt_tokens = call.request.prompt_tokens
        output_tokens = call.output_tokens
        reads = output_tokens * prompt_tokens
        terms = [
            known
            if (known := load.score_terms) is not None and known[0] == alpha
            else self._terms(load)
            for load in loads
        ]
        prefix = call.request.prefix
        if prefix:
            return [
                here_s
                + prefill_s * load.fresh_tokens(call)
                + decode_s * output_tokens
                + read_s * reads
                for load, (_, here_s, prefill_s, decode_s, read_s) in zip(loads, terms, strict=True)
            ]
        return [
            here_s + prefill_s * prompt_tokens + decode_s * output_tokens + read_s * reads
            for _, here_s, prefill_s, decode_s, read_s in terms
        ]

    def _terms(self, load: BackendLoad) -> tuple[float, ...]:
        """Return alpha, seconds for any call, and seconds for each p_r, o_r and o_r in_r.

        The load keeps them until it changes.
        """
        own_weight, caused_weight = 2 * self.alpha, 2 * (1 - self.alpha)
        profile = load.profile
        prefill_s = profile.prefill_s_per_token
        read_s = profile.kv_read_s_per_token
        batch = len(load.running)
        step_s = (
            profile.step_overhead_s
            + max(prefill_s * (batch + 1), profile.decode_base_s)
            + read_s * load.context_tokens
        )
        terms = load.score_terms = (
            self.alpha,
            own_weight * prefill_s * load.pending_prefill_tokens,
            (own_weight + caused_weight * batch) * prefill_s,
            own_weight * step_s,
            (own_weight + caused_weight * batch / 2) * read_s,
        )
        return terms
