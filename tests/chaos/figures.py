"""Figure: what a run has shown, as Markdown or JSON, and what of it is wrong."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN = 5
"""So many of a list of mistakes are printed."""


@dataclass
class Figure:
    """Rows of what was seen; a claim that does not hold is wrong."""

    title: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, name: str, value: object) -> None:
        """Tell something that is neither good nor bad."""
        self.rows.append((name, str(value), ""))

    def claim(self, name: str, holds: bool, seen: str) -> None:
        """Tell something that should hold."""
        self.rows.append((name, seen, "yes" if holds else "**no**"))
        if not holds:
            self.wrong.append(f"{name}: {seen}")

    def none_of(self, name: str, found: Sequence[str]) -> None:
        """Claim that there is nothing of a kind."""
        self.claim(name, not found, "; ".join([str(len(found)), *found[:SHOWN]]))

    def markdown(self) -> str:
        """Return it as a table."""
        lines = [f"### {self.title}", "", "| | seen | holds |", "|---|---|---|"]
        lines += [f"| {name} | {seen} | {holds} |" for name, seen, holds in self.rows]
        return "\n".join(lines)

    def as_json(self) -> str:
        """Return it as one line of JSON."""
        rows = {name: {"seen": seen, "holds": holds == "yes"} for name, seen, holds in self.rows}
        return json.dumps({"title": self.title, "rows": rows, "wrong": self.wrong})
