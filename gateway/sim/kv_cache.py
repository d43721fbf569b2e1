"""KvCache: the blocks of an engine's KV cache that are in use, and prefixes that may be again."""

from gateway.sim.batch import Sequence
from gateway.sim.prefix_cache import PrefixCache


class KvCache:
    """How many blocks are in use, and what becomes of the prefixes in them.

    A sequence holds blocks from `admit` to `release`. Those that decode take theirs all at once
    (`take`): who decodes is counted in sums.
    """

    def __init__(self, total_blocks: int, block_tokens: int, *, prefix_caching: bool) -> None:
        self.total_blocks = total_blocks
        self.prefix_queries = 0
        """Tokens looked up in the prefix cache so far."""
        self.prefix_hits = 0
        """Tokens of those that were found."""
        self._block_tokens = block_tokens
        self._prefix_caching = prefix_caching
        self.empty()

    def empty(self) -> None:
        """Lose everything, but not the counts."""
        self.used_blocks = 0
        self._prefixes = PrefixCache(self._block_tokens)

    @property
    def unused_blocks(self) -> int:
        """Free blocks that still hold a prefix nobody uses."""
        return self._prefixes.unused_blocks

    def blocks(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-tokens // self._block_tokens)

    def take(self, blocks: int) -> None:
        """Use so many more blocks."""
        self.used_blocks += blocks
        self._evict()

    def admit(self, sequence: Sequence, promised_blocks: int, now: float) -> bool:
        """Hold the cached part of its prompt if the whole of it fits; say whether it does."""
        total = sequence.prompt_tokens + sequence.output
        cached = unused = 0
        looks_up = self._prefix_caching and bool(sequence.prefix)
        if looks_up:
            cached, unused = self._prefixes.match(sequence.prefix)
            # The last token is computed in any case: its output is the next token.
            cached = min(cached, (total - 1) // self._block_tokens)
        free = self.total_blocks - self.used_blocks - promised_blocks
        if self.blocks(max(total, sequence.reach)) - cached + unused > free:
            return False
        if looks_up:
            sequence.lease = self._prefixes.acquire(sequence.prefix)
            self.used_blocks += unused
        sequence.shared_blocks = cached
        sequence.computed = cached * self._block_tokens
        if self._prefix_caching:
            self.prefix_queries += total
            self.prefix_hits += sequence.computed
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            sequence.started_at = now
        return True

    def compute(self, sequence: Sequence, tokens: int) -> None:
        """Hold so many more tokens of an admitted sequence's prompt."""
        before = self.blocks(sequence.computed)
        sequence.computed += tokens
        self.used_blocks += self.blocks(sequence.computed) - before
        if sequence.lease is not None and sequence.lease.extends:
            full_blocks = sequence.computed // self._block_tokens
            sequence.shared_blocks += self._prefixes.extend(sequence.lease, full_blocks)
        self._evict()

    def release(self, sequence: Sequence) -> None:
        """Free what a sequence holds; its prefix stays until the blocks are needed."""
        self.used_blocks -= self.blocks(sequence.computed) - sequence.shared_blocks
        if sequence.lease is not None:
            self.used_blocks -= self._prefixes.release(sequence.lease)
            sequence.lease = None

    def _evict(self) -> None:
        """Drop unused prefixes whose blocks are in use now."""
        excess = self.used_blocks + self._prefixes.unused_blocks - self.total_blocks
        if excess > 0:
            self._prefixes.evict(excess)
