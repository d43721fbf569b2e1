"""TraceContext: where in a trace something happened, and how W3C's `traceparent` says it (pure)."""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """One span, as those that happen below it need to know it."""

    trace_id: int
    """128 bits, not zero."""
    span_id: int
    """64 bits, not zero."""
    is_sampled: bool = True
    """Somebody keeps it."""

    @property
    def header(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def read_traceparent(value: str) -> TraceContext | None:
    """Return what a client says; None if it is not well-formed, which begins a new trace."""
    match = _TRACEPARENT.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None
