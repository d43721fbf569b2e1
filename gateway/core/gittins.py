"""Gittins indices: what a call is worth serving first when its length is a distribution.

SageSched (arXiv 2603.07917): serve in ascending order of

    G(a) = min over d of  E[min(C, d) - c(a) | C > c(a)] / P(C <= d | C > c(a))

where C is the call's whole cost and c(a) the cost of what it has attained at age `a` tokens. The
cost of an answer of O tokens to a prompt of I tokens is C = O^2 / 2 + I * O: each of its tokens
reads all the KV before it.
"""

from collections.abc import Callable

from gateway.core.lengths import LengthDistribution


def gittins_index(
    lengths: LengthDistribution, cost_of: Callable[[float], float], age_tokens: float = 0.0
) -> float:
    """Return the index, in the unit of `cost_of`, of an answer that has reached `age_tokens`.

    `cost_of` maps tokens to cost and rises; it may start above 0, by what must be spent before the
    first token. At age 0 nothing is attained, not even that. Past the last edge the index is the
    cost of half as much again: an answer that outlived its forecast is served late, not never.
    """
    attained = cost_of(age_tokens) if age_tokens > 0 else 0.0
    alive = lengths.exceeds(age_tokens)
    if alive <= 1e-9:
        return cost_of(age_tokens * 1.5 + 1) - attained
    best = float("inf")
    spent = 0.0  # E[min(C, d) - c(a); done by d], unnormalised
    done = 0.0
    low = age_tokens
    for mass, start, end in zip(lengths.mass, lengths.edges, lengths.edges[1:], strict=False):
        if end <= age_tokens or mass == 0.0:
            continue
        low = max(start, age_tokens)
        inside = mass * (end - low) / (end - start)
        spent += inside * (cost_of((low + end) / 2) - attained)
        done += inside
        still = max(alive - done, 0.0)
        ratio = (spent + still * (cost_of(end) - attained)) / done
        if ratio < best:
            best = ratio
    return best


def attention_cost(prompt_tokens: int) -> Callable[[float], float]:
    """Return C(O) = O^2 / 2 + I * O for a prompt of I tokens (SageSched, section 4)."""
    return lambda output_tokens: output_tokens * (output_tokens / 2 + prompt_tokens)
