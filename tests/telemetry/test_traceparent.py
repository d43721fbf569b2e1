"""W3C's `traceparent`, read and written."""

import pytest

from gateway.telemetry.traceparent import TraceContext, read_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def test_what_is_read_is_written_alike() -> None:
    for flags, is_sampled in (("01", True), ("00", False)):
        said = f"00-{TRACE}-{SPAN}-{flags}"
        context = read_traceparent(said)

        assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled)
        assert context.header == said


def test_a_later_version_may_say_more() -> None:
    context = read_traceparent(f"01-{TRACE}-{SPAN}-03-more")

    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled=True)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_is_not_well_formed_begins_a_new_trace(said: str) -> None:
    assert read_traceparent(said) is None
