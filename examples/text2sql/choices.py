"""Reading a model's answers with the best of wills, and voting. Pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from examples.text2sql.database import Ran

_WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,}")
_VERDICT = re.compile(r"(\d+)\s*[:.)-]+\s*(pass|fail)", re.IGNORECASE)
MAX_WORDS = 8
SPEECH = re.compile(
    r"(and|answer|are|between|did|does|each|ever|from|give|has|have|how|into|list|many|most|much|name"
    r"|number|that|the|their|there|was|were|what|when|which|who|with)",
    re.IGNORECASE,
)
"""Words of a question that name nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A query, what came of it, and where it is from."""

    origin: str
    sql: str
    ran: Ran
    revisions: int = 0


def keywords(answer: str, question: str) -> list[str]:
    """Return what the model named if the question says it, else the question's own words."""
    named = [word.strip(" .\"'") for word in answer.split(",")]
    known = [word for word in named if word and word.lower() in question.lower()]
    return (known or [w for w in _WORD.findall(question) if not SPEECH.fullmatch(w)])[:MAX_WORDS]


def tables(answer: str, known: Collection[str]) -> list[str]:
    """Return the tables that an answer names, or all if it names none."""
    said = set(re.findall(r"\w+", answer.lower()))
    return [table for table in known if table.lower() in said] or list(known)


def unit_tests(answer: str, count: int) -> list[str]:
    """Return `count` tests at most, and at least one."""
    lines = [line.strip("-*• \t") for line in answer.splitlines()]
    return [line[:300] for line in lines if line][:count] or ["The result answers the question."]


def passed(verdict: str, candidates: int) -> list[bool]:
    """Return for each candidate whether a verdict says that it passes."""
    said = {int(n): word.lower() == "pass" for n, word in _VERDICT.findall(verdict)}
    return [said.get(number, False) for number in range(1, candidates + 1)]


def vote(candidates: Sequence[Candidate], points: Sequence[int]) -> Candidate:
    """Return the best: one that ran; then most points; then most that agree; then the first."""

    def merit(index: int) -> tuple[bool, int, int, int]:
        answer = candidates[index].ran.as_answer
        agree = sum(other.ran.as_answer == answer for other in candidates)
        return answer is not None, points[index], agree, -index

    return candidates[max(range(len(candidates)), key=merit)]
