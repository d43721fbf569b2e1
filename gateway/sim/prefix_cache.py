"""PrefixCache: which shared prompt prefixes an engine still holds, counted in KV blocks (pure).

As in vLLM: only full blocks are shared; what a running sequence uses cannot be evicted; what
nobody uses stays until its blocks are needed, and then goes least recently used first, the end of
a prefix before its beginning. Entries are segments (`PromptSegment`), not single blocks, so a
lookup costs one step a segment.
"""

from collections import OrderedDict

from gateway.core.types import PromptSegment


class CachedSegment:
    """The blocks that one segment adds to its prefix; perhaps only the first few are held."""

    __slots__ = ("blocks", "key", "users")

    def __init__(self, key: int) -> None:
        self.key = key
        self.blocks = 0
        self.users = 0


class PrefixLease:
    """What one running sequence holds of the cache, and which segments it is computing."""

    __slots__ = ("extends", "held")

    def __init__(self) -> None:
        self.held: list[CachedSegment] = []
        """In prompt order."""
        self.extends: list[tuple[CachedSegment, int, int]] = []
        """Segments to fill in as they are computed, with their first block and the one after
        their last, counted from the prompt's start."""


class PrefixCache:
    """Segments by key, who uses them, and the order in which unused ones are evicted."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._segments: dict[int, CachedSegment] = {}
        self._unused: OrderedDict[int, CachedSegment] = OrderedDict()
        self.unused_blocks = 0
        """Blocks held only in case somebody asks for them again."""

    def match(self, prefix: tuple[PromptSegment, ...]) -> tuple[int, int]:
        """Return how many blocks of this prefix are held, and how many of those are unused now."""
        held = unused = end_tokens = 0
        for key, tokens in prefix:
            start = end_tokens // self._block_tokens
            end_tokens += tokens
            size = end_tokens // self._block_tokens - start
            if not size:
                continue
            segment = self._segments.get(key)
            if segment is None:
                break
            held += segment.blocks
            if not segment.users:
                unused += segment.blocks
            if segment.blocks < size:
                break
        return held, unused

    def acquire(self, prefix: tuple[PromptSegment, ...]) -> PrefixLease:
        """Use what `match` found, and announce the segments that will now be computed.

        Nobody else may acquire until those are extended in full or the lease is released: an
        engine has one sequence between two chunks at most.
        """
        lease = PrefixLease()
        end_tokens = 0
        for key, tokens in prefix:
            start = end_tokens // self._block_tokens
            end_tokens += tokens
            end = end_tokens // self._block_tokens
            if end == start:
                continue
            segment = self._segments.get(key)
            if segment is None:
                segment = self._segments[key] = CachedSegment(key)
            elif not segment.users:
                del self._unused[key]
                self.unused_blocks -= segment.blocks
            segment.users += 1
            lease.held.append(segment)
            if segment.blocks < end - start:
                lease.extends.append((segment, start, end))
        return lease

    def extend(self, lease: PrefixLease, computed_blocks: int) -> int:
        """Share the full blocks computed so far; return how many are newly shared."""
        added = 0
        while lease.extends:
            segment, start, end = lease.extends[0]
            blocks = min(computed_blocks, end) - start
            if blocks > segment.blocks:
                added += blocks - segment.blocks
                segment.blocks = blocks
            if computed_blocks < end:
                break
            del lease.extends[0]
        return added

    def release(self, lease: PrefixLease) -> int:
        """Give the lease back; return how many blocks nobody uses any more because of it."""
        freed = 0
        # The end of the prefix first: so it is also evicted before what it depends on.
        for segment in reversed(lease.held):
            segment.users -= 1
            if segment.users:
                continue
            if segment.blocks:
                self._unused[segment.key] = segment
                freed += segment.blocks
            else:
                del self._segments[segment.key]
        self.unused_blocks += freed
        return freed

    def evict(self, blocks: int) -> None:
        """Drop this many unused blocks (there must be as many), the longest unused first."""
        self.unused_blocks -= blocks
        while blocks:
            key, segment = next(iter(self._unused.items()))
            if segment.blocks > blocks:
                segment.blocks -= blocks
                return
            blocks -= segment.blocks
            del self._unused[key]
            del self._segments[key]
