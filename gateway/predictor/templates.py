"""Templates: what all prompts of a stage share, so that it can be taken off.

Inside a long template every pair of prompts has a cosine above 0.99; without it they compare as
well as the bare texts do.
"""

from collections import OrderedDict

MIN_SHARED_CHARS = 64
MIN_PROMPTS = 4
MAX_STAGES = 256
MAX_CHARS = 2_000_000
"""Kept of all templates together."""


class _Shared:
    __slots__ = ("has_shrunk", "prefix", "retry_at", "seen", "suffix")

    def __init__(self, text: str) -> None:
        self.seen = 1
        self.retry_at = 64
        """Nothing shared is left: begin anew at that many prompts (one odd one may be to blame)."""
        self.begin(text)

    def begin(self, text: str) -> None:
        self.prefix = self.suffix = text
        self.has_shrunk = False

    def fits(self, text: str) -> bool:
        """Tell whether there is nothing to learn from one more text."""
        if not self.has_shrunk:
            return False
        if not self.prefix and not self.suffix:
            return self.seen < self.retry_at
        return text.startswith(self.prefix) and text.endswith(self.suffix)

    def narrow(self, text: str) -> None:
        if not text.startswith(self.prefix):
            self.prefix = _back_to_space(self.prefix[: _common_prefix(self.prefix, text)])
            self.has_shrunk = True
        if not text.endswith(self.suffix):
            length = _common_prefix(self.suffix[::-1], text[::-1])
            self.suffix = _on_to_space(self.suffix[len(self.suffix) - length :])
            self.has_shrunk = True

    @property
    def chars(self) -> int:
        return len(self.prefix) + len(self.suffix)


class Templates:
    """The common prefix and suffix of each stage's prompts. One owner; bounded."""

    def __init__(self) -> None:
        self._stages: OrderedDict[str, _Shared] = OrderedDict()
        self._chars = 0

    @property
    def nbytes(self) -> int:
        """Memory, in bytes (texts beyond Latin-1 take two to four times that)."""
        return self._chars + 300 * len(self._stages)

    def strip(self, stage: str, text: str) -> str:
        """Return what is special of `text`, and learn from it what is not."""
        shared = self._stages.get(stage)
        if shared is None:
            self._stages[stage] = shared = _Shared(text)
            self._chars += shared.chars
            self._keep_bounds()
            return text
        self._stages.move_to_end(stage)
        shared.seen += 1
        if not shared.fits(text):
            self._learn(shared, text)
        if shared.seen < MIN_PROMPTS or not shared.has_shrunk:
            return text
        prefix, suffix = len(shared.prefix), len(shared.suffix)
        return text[prefix : max(len(text) - suffix, prefix)].strip() or text

    def _learn(self, shared: _Shared, text: str) -> None:
        before = shared.chars
        if shared.chars:
            shared.narrow(text)
        elif shared.seen >= shared.retry_at:
            shared.retry_at = 4 * shared.seen
            shared.begin(text)
        if len(shared.prefix) < MIN_SHARED_CHARS:
            shared.prefix = ""
        if len(shared.suffix) < MIN_SHARED_CHARS:
            shared.suffix = ""
        self._chars += shared.chars - before
        self._keep_bounds()

    def _keep_bounds(self) -> None:
        while len(self._stages) > MAX_STAGES or (self._chars > MAX_CHARS and self._stages):
            _, dropped = self._stages.popitem(last=False)
            self._chars -= dropped.chars


def _common_prefix(a: str, b: str) -> int:
    """Return how many leading characters two texts share, by bisection over slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _back_to_space(prefix: str) -> str:
    """Cut at a word boundary, so that no prompt loses half a word."""
    return prefix[: max(prefix.rfind(" "), prefix.rfind("\n")) + 1]


def _on_to_space(suffix: str) -> str:
    starts = [i for i in (suffix.find(" "), suffix.find("\n")) if i >= 0]
    return suffix[min(starts) :] if starts else ""
