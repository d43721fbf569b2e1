"""Gittins indices: what a call is worth serving first when its length is a distribution.

SageSched (arXiv 2603.07917): serve in ascending order of

    G(a) = min over d of  E[min(C, d) - c(a) | C > c(a)] / P(C <= d | C > c(a))

where C is the call's whole cost and c(a) the cost of what it has attained at age `a` tokens. The
cost of an answer of O tokens to a prompt of I tokens is C = O^2 / 2 + I * O: each of its tokens
reads all the KV before it.
"""

from typing import NamedTuple

from gateway.core.lengths import LengthDistribution


class Cost(NamedTuple):
    """What an answer of O tokens costs, in any unit: fixed + linear x O + square x O^2.

    All of it rises with O; `fixed` is what must be spent before the first token.
    """

    linear: float
    square: float = 0.0
    fixed: float = 0.0

    def of(self, output_tokens: float) -> float:
        """Return the cost of that many tokens."""
        return self.fixed + output_tokens * (self.linear + self.square * output_tokens)


def gittins_index(lengths: LengthDistribution, cost: Cost, age_tokens: float = 0.0) -> float:
    """Return the index, in the unit of `cost`, of an answer that has reached `age_tokens`.

    At age 0 nothing is attained, not even what is fixed. Past the last edge the index is the cost
    of half as much again: an answer that outlived its forecast is served late, not never.
    """
    attained = cost.of(age_tokens) if age_tokens > 0 else 0.0
    alive = lengths.exceeds(age_tokens)
    if alive <= 1e-9:
        return cost.of(age_tokens * 1.5 + 1) - attained
    linear, square, fixed = cost
    fixed -= attained
    best = float("inf")
    spent = 0.0  # E[min(C, d) - c(a); done by d], unnormalised
    done = 0.0
    edges = lengths.edges
    for mass, start, end in zip(lengths.mass, edges, edges[1:], strict=False):
        if mass == 0.0 or end <= age_tokens:
            continue
        if start < age_tokens:
            mass *= (end - age_tokens) / (end - start)
            start = age_tokens
        middle = (start + end) / 2
        spent += mass * (fixed + middle * (linear + square * middle))
        done += mass
        still = alive - done if alive > done else 0.0
        ratio = (spent + still * (fixed + end * (linear + square * end))) / done
        if ratio < best:
            best = ratio
    return best


def attention_cost(prompt_tokens: int) -> Cost:
    """Return C(O) = O^2 / 2 + I * O for a prompt of I tokens (SageSched, section 4)."""
    return Cost(linear=prompt_tokens, square=0.5)
