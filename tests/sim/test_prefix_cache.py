"""PrefixCache: full blocks, shared while used, evicted from the end of the oldest prefix."""

from gateway.core.types import PromptSegment
from gateway.sim.prefix_cache import PrefixCache

SYSTEM = PromptSegment(1, 40)
SCHEMA = PromptSegment(2, 40)


def a_cache(*prefixes: tuple[PromptSegment, ...]) -> PrefixCache:
    """Return a cache of 16-token blocks in which these were computed, one after the other."""
    cache = PrefixCache(16)
    for prefix in prefixes:
        lease = cache.acquire(prefix)
        cache.extend(lease, 100)
        cache.release(lease)
    return cache


def test_only_full_blocks_are_held_and_they_are_counted_from_the_prompts_start() -> None:
    cache = a_cache((SYSTEM, SCHEMA))

    assert cache.match((SYSTEM,)) == (2, 2)
    assert cache.match((SYSTEM, SCHEMA)) == (5, 5)


def test_a_prefix_is_found_only_from_its_beginning() -> None:
    cache = a_cache((SYSTEM, SCHEMA))

    assert cache.match((PromptSegment(9, 40), SCHEMA)) == (0, 0)


def test_a_segment_shorter_than_a_block_breaks_no_prefix() -> None:
    prefix = (PromptSegment(3, 5), PromptSegment(4, 5), PromptSegment(5, 30))
    cache = a_cache(prefix)

    assert cache.match(prefix) == (2, 2)
    assert cache.match(prefix[:2]) == (0, 0)


def test_blocks_are_shared_as_soon_as_they_are_computed() -> None:
    cache = PrefixCache(16)
    lease = cache.acquire((SYSTEM, SCHEMA))

    assert cache.extend(lease, 1) == 1
    assert cache.match((SYSTEM, SCHEMA)) == (1, 0)
    assert cache.extend(lease, 4) == 3
    assert cache.match((SYSTEM, SCHEMA)) == (4, 0)
    assert cache.extend(lease, 9) == 1
    assert lease.extends == []


def test_only_the_last_user_sets_blocks_free() -> None:
    cache = a_cache((SYSTEM,))
    first, second = cache.acquire((SYSTEM,)), cache.acquire((SYSTEM,))

    assert cache.unused_blocks == 0
    assert cache.release(first) == 0
    assert cache.release(second) == 2
    assert cache.unused_blocks == 2


def test_the_longest_unused_goes_first() -> None:
    old, new = (PromptSegment(7, 32),), (PromptSegment(8, 32),)
    cache = a_cache(old, new, old)

    cache.evict(2)

    assert cache.match(old) == (2, 2)
    assert cache.match(new) == (0, 0)


def test_the_end_of_a_prefix_goes_before_its_beginning() -> None:
    cache = a_cache((SYSTEM, SCHEMA))

    cache.evict(1)
    assert cache.match((SYSTEM, SCHEMA)) == (4, 4)
    cache.evict(3)
    assert cache.match((SYSTEM, SCHEMA)) == (1, 1)
    assert cache.unused_blocks == 1


def test_a_lease_given_back_before_anything_was_computed_leaves_nothing() -> None:
    cache = PrefixCache(16)

    assert cache.release(cache.acquire((SYSTEM,))) == 0

    assert cache.match((SYSTEM,)) == (0, 0)
