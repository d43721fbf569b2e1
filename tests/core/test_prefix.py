"""PrefixTable: what is cached, what is in use, counted once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.prefix import MAX_SEGMENTS, PrefixTable
from gateway.core.types import PromptSegment

SYSTEM = PromptSegment(key=1, tokens=100)
TOOLS = PromptSegment(key=2, tokens=50)
CHAT = PromptSegment(key=3, tokens=20)


def test_nothing_is_cached_before_anything_ran() -> None:
    table = PrefixTable(1000)

    assert table.cached_tokens((SYSTEM, TOOLS)) == 0
    assert table.unreferenced_tokens((SYSTEM, TOOLS)) == 150


def test_a_prefix_is_cached_as_far_as_it_is_the_same() -> None:
    table = PrefixTable(1000)
    table.acquire((SYSTEM, TOOLS))

    assert table.cached_tokens((SYSTEM, TOOLS)) == 150
    assert table.cached_tokens((SYSTEM, CHAT)) == 100
    assert table.cached_tokens((CHAT, SYSTEM)) == 0


def test_what_two_calls_share_is_held_once() -> None:
    table = PrefixTable(1000)
    table.acquire((SYSTEM, TOOLS))
    table.acquire((SYSTEM, CHAT))

    assert table.referenced_tokens == 170
    assert table.unreferenced_tokens((SYSTEM, TOOLS)) == 0

    table.release((SYSTEM, TOOLS))
    assert table.referenced_tokens == 120
    table.release((SYSTEM, CHAT))
    assert table.referenced_tokens == 0


def test_a_prefix_stays_cached_when_nobody_uses_it() -> None:
    table = PrefixTable(1000)
    table.acquire((SYSTEM,))
    table.release((SYSTEM,))

    assert table.cached_tokens((SYSTEM,)) == 100


def test_the_least_recently_used_is_pushed_out_first() -> None:
    table = PrefixTable(160)
    for segment in (SYSTEM, TOOLS, SYSTEM, CHAT):
        table.acquire((segment,))
        table.release((segment,))

    assert table.cached_tokens((TOOLS,)) == 0
    assert table.cached_tokens((SYSTEM,)) == 100
    assert table.cached_tokens((CHAT,)) == 20


def test_a_restarted_engine_has_nothing_cached_but_the_books_stay_right() -> None:
    table = PrefixTable(1000)
    table.acquire((SYSTEM,))
    table.forget()

    assert table.cached_tokens((SYSTEM,)) == 0
    table.release((SYSTEM,))
    assert table.referenced_tokens == 0


def test_one_prefix_cut_in_two_ways_is_released_as_it_was_taken() -> None:
    table = PrefixTable(1000)
    whole = (PromptSegment(key=2, tokens=150),)
    table.acquire((SYSTEM, TOOLS))
    table.acquire(whole)

    table.release((SYSTEM, TOOLS))
    assert table.referenced_tokens == 50
    table.release(whole)
    assert table.referenced_tokens == 0


def test_the_number_of_segments_is_bounded() -> None:
    table = PrefixTable(1 << 40)
    for key in range(MAX_SEGMENTS + 100):
        segment = (PromptSegment(key, 1),)
        table.acquire(segment)
        table.release(segment)

    assert len(table._held) == MAX_SEGMENTS
    assert table._references == {}


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60)), max_size=3), st.booleans()
        ),
        max_size=40,
    ),
    st.integers(1, 200),
)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_and_goes_nothing_is_left_over(
    script: list[tuple[list[tuple[int, int]], bool]], capacity_tokens: int
) -> None:
    table = PrefixTable(capacity_tokens)
    running: list[tuple[PromptSegment, ...]] = []
    for pieces, ends_one in script:
        prefix = tuple(PromptSegment(key, tokens) for key, tokens in pieces)
        table.acquire(prefix)
        running.append(prefix)
        if ends_one:
            table.release(running.pop(len(prefix) % len(running)))
        assert table.referenced_tokens >= 0
        assert 0 <= table._held_tokens <= capacity_tokens
        assert table._held_tokens == sum(table._held.values())
    for prefix in running:
        table.release(prefix)

    assert table.referenced_tokens == 0
    assert not table._references
