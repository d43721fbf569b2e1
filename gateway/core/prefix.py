"""PrefixTable: which prompt prefixes a backend's cache probably holds, and which are in use."""

from collections import OrderedDict
from collections.abc import Iterable

from gateway.core.types import PromptSegment

MAX_SEGMENTS = 4096


class PrefixTable:
    """The gateway's picture of one engine's prefix cache.

    Segments of running calls are referenced; the others stay until newer ones push them out, as
    in the engine (least recently used first). Bounded by the engine's KV capacity and by count.
    """

    __slots__ = ("_held", "_held_tokens", "_references", "capacity_tokens", "referenced_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._held: OrderedDict[int, int] = OrderedDict()
        self._held_tokens = 0
        self._references: dict[int, tuple[int, int]] = {}
        """How many running calls use a segment, and its tokens as its first user had them: a
        prefix may be cut in several ways, so that one key comes with several lengths."""
        self.referenced_tokens = 0
        """Tokens of the distinct segments that running calls use: each counted once."""

    def cached_tokens(self, prefix: Iterable[PromptSegment]) -> int:
        """Return how many leading tokens of a prompt need not be computed here."""
        held = self._held
        total = 0
        for key, tokens in prefix:
            if key not in held:
                break
            total += tokens
        return total

    def unreferenced_tokens(self, prefix: Iterable[PromptSegment]) -> int:
        """Return the tokens of `prefix` that no running call holds yet."""
        references = self._references
        return sum(tokens for key, tokens in prefix if key not in references)

    def acquire(self, prefix: tuple[PromptSegment, ...]) -> None:
        """A call with this prefix starts here."""
        for key, tokens in prefix:
            uses, counted_tokens = self._references.get(key, (0, tokens))
            self._references[key] = (uses + 1, counted_tokens)
            if uses == 0:
                self.referenced_tokens += tokens
            if key in self._held:
                self._held.move_to_end(key)
            else:
                self._held[key] = tokens
                self._held_tokens += tokens
        self._trim()

    def release(self, prefix: tuple[PromptSegment, ...]) -> None:
        """A call with this prefix is over; its segments stay until pushed out."""
        for key, _ in prefix:
            uses, counted_tokens = self._references[key]
            if uses > 1:
                self._references[key] = (uses - 1, counted_tokens)
            else:
                del self._references[key]
                self.referenced_tokens -= counted_tokens

    def forget(self) -> None:
        """The engine restarted: nothing is cached any more."""
        self._held.clear()
        self._held_tokens = 0

    def _trim(self) -> None:
        while self._held_tokens > self.capacity_tokens or len(self._held) > MAX_SEGMENTS:
            _, tokens = self._held.popitem(last=False)
            self._held_tokens -= tokens
