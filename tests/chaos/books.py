"""Books: what clients saw against what the gateway wrote down, call by call."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.chaos.clients import Told
from tests.chaos.proxy import Attempt

Name = tuple[str, str]
Settled = Mapping[str, object]

OUTCOMES = {
    "completed": {"completed"},
    "broken": {"failed"},
    "refused": {"rejected", "evicted", "failed", "cancelled"},
    "left": {"abandoned", "completed", "failed", "rejected", "evicted"},
}
"""What the gateway may have written of a call, by what its client saw."""
TURNED_AWAY = {"queue_full", "tenant_queue_full", "queue_timeout", "workflow_cancelled"}
"""Refusals for lack of room, or by somebody's wish: no backend has failed."""


def settlements(decisions: Path) -> dict[Name, list[Settled]]:
    """Return how calls ended, by workflow and stage."""
    found: dict[Name, list[Settled]] = defaultdict(list)
    with decisions.open("rb") as lines:
        for line in lines:
            if b'"Settle"' in line:
                settled = json.loads(line)["command"]
                workflow = settled["workflow"]
                found[workflow[1] if workflow else "", settled["stage"] or ""].append(settled)
    return found


def disagreements(told: Iterable[Told], settled: Mapping[Name, Sequence[Settled]]) -> list[str]:
    """Return every call of which client and gateway do not say the same."""
    wrong = []
    known = {call.name: call for call in told}
    for name, call in known.items():
        entries = settled.get(name, [])
        if call.outcome == "left" and not entries:
            continue  # it left before its request was whole
        if len(entries) != 1:
            wrong.append(f"{name} ({call.outcome}) was settled {len(entries)} times")
            continue
        outcome, reason = entries[0]["outcome"], entries[0]["reason"]
        if outcome not in OUTCOMES.get(call.outcome, set()):
            wrong.append(f"{name} was {call.outcome} {call.code} for its client, here {outcome}")
        elif call.outcome == "refused" and outcome != "failed" and reason != call.code:
            wrong.append(f"{name} was refused for {call.code}, here for {reason}")
    wrong += [f"{name} was settled and never sent" for name in settled.keys() - known.keys()]
    return wrong


def counted(metrics: str) -> Counter[str]:
    """Return the requests that the metrics count, by outcome."""
    counts: Counter[str] = Counter()
    for outcome, count in re.findall(
        r'hexsage_requests_total\{[^}]*outcome="(\w+)"[^}]*\} ([\d.e+]+)', metrics
    ):
        counts[outcome] += int(float(count))
    return counts


def left_over(metrics: str) -> list[str]:
    """Return the gauges of what waits and runs that are not 0."""
    gauges = re.findall(
        r"^(hexsage_(?:requests_queued|requests_in_flight|workflows_open|backend_requests_in_flight"
        r"|backend_backlog_seconds|backend_kv_reserved_tokens)\S*) (\S+)$",
        metrics,
        re.MULTILINE,
    )
    assert len(gauges) > 3, "the metrics are not what they were"
    return [f"{name} is {value}" for name, value in gauges if float(value) != 0]


def gauge(metrics: str, name: str) -> float:
    """Return one gauge without labels."""
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    assert found is not None, f"there is no {name}"
    return float(found[1])


def run_after_a_byte(told: Iterable[Told], attempts: Iterable[Attempt]) -> list[str]:
    """Return every call that reached an engine although its client had a byte of an answer."""
    first_byte_at = {call.tag: call.first_byte_at for call in told}
    return [
        f"{attempt.tag} was sent again as {attempt.upstream_id} after its first byte"
        for attempt in attempts
        if (at := first_byte_at.get(attempt.tag)) is not None and attempt.at > at
    ]


def twice_the_same(attempts: Iterable[Attempt]) -> list[str]:
    """Return upstream ids that more than one call had."""
    tags: dict[str, set[str]] = defaultdict(set)
    for attempt in attempts:
        tags[attempt.upstream_id].add(attempt.tag)
    return [f"{name} was the id of {len(of)} calls" for name, of in tags.items() if len(of) > 1]


def needless_failures(told: Iterable[Told]) -> list[Told]:
    """Return the calls that failed before their first byte while some backend was well."""
    return [
        call
        for call in told
        if call.outcome == "lost" or (call.outcome == "refused" and call.code not in TURNED_AWAY)
    ]
