"""Chore: work too long for the owner's thread, done on another one."""

from typing import Protocol


class Chore(Protocol):
    """`run` anywhere, then `keep` on the owner's thread, in that order and once each."""

    def run(self) -> None:
        """Do the work; touch nothing that others see."""
        ...

    def keep(self) -> None:
        """Use what came of it, if anything did."""
        ...
