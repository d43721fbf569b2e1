"""Budget: what share of a backend's KV budget it may have, by what its engine says and does.

The budget is computed from the engine's size; what else holds it, others' calls or tokens nobody
foresaw, is not in that sum. An engine in which calls wait that should have begun by now has been
given too much, and so has one that refuses calls for lack of room. Each such sign cuts the share,
each sign of the contrary raises it a little (AIMD, as TCP does).
"""

MIN_SHARE = 0.1
CUT = 0.7
RAISE = 0.05
"""After a look at the engine that found nobody waiting."""
RAISE_A_CALL = 0.01
"""After a call that was answered, where the engine does not say who waits."""


class Budget:
    """One backend's. Silence is no good news: a look that shows nothing raises nothing."""

    __slots__ = ("_is_told", "share")

    def __init__(self) -> None:
        self.share = 1.0
        self._is_told = False

    def looked(self, waiting: int | None, expected: int) -> bool:
        """The engine was looked at; return whether the share has changed.

        `waiting`: calls in its queue, None if it does not say; `expected`: of ours, those whose
        prompts may still be unread.
        """
        before = self.share
        self._is_told = waiting is not None
        if waiting is None:
            return False
        if waiting > expected:
            self.refused()
        else:
            self.share = min(self.share + RAISE, 1.0)
        return self.share != before

    def refused(self) -> None:
        """The engine has too much: it said so, or refused a call for lack of room."""
        self.share = max(self.share * CUT, MIN_SHARE)

    def answered(self) -> None:
        """A call was answered in full."""
        if not self._is_told:
            self.share = min(self.share + RAISE_A_CALL, 1.0)
