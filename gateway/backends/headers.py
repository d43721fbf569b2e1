"""Which headers pass from a client to an engine and back (pure)."""

import re
from collections.abc import Iterable

from gateway.backends.base import Header

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

TO_ENGINE = frozenset(
    {
        b"accept-language",
        b"baggage",
        b"endpoint-load-metrics-format",
        b"traceparent",
        b"tracestate",
    }
)
"""All that an engine can use of a client's headers. A list of what may pass, not of what may not:
engines obey headers that route, prioritise or authenticate, and new ones come with each version."""

NOT_TO_CLIENT = HOP_BY_HOP | {
    b"access-control-allow-credentials",
    b"access-control-allow-headers",
    b"access-control-allow-methods",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
    b"content-encoding",
    b"content-length",
    b"date",
    b"server",
    b"server-timing",
    b"x-request-id",
}
"""Hop-by-hop, or the gateway's own to say."""

_VALID_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_INVALID_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def named_in_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the header names that `Connection` declares to be for this hop only."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def to_engine(headers: Iterable[Header]) -> tuple[tuple[str, str], ...]:
    """Return what of a client's headers goes upstream; names must be in lower case."""
    passed = [(name, value) for name, value in headers if name in TO_ENGINE]
    if not passed:
        return ()
    for_this_hop = named_in_connection(headers)
    return tuple(
        (name.decode("ascii"), value.decode("latin-1"))
        for name, value in passed
        if name not in for_this_hop and value.isascii()
    )


def to_client(headers: Iterable[Header]) -> tuple[Header, ...]:
    """Return what of an engine's headers goes to the client, repeated ones kept apart."""
    headers = tuple(headers)
    for_this_hop = named_in_connection(headers)
    return tuple(
        (lower, value)
        for name, value in headers
        if (lower := name.lower()) not in NOT_TO_CLIENT
        and lower not in for_this_hop
        and _VALID_NAME.fullmatch(name)
        and not _INVALID_VALUE.search(value)
    )
