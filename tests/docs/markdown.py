"""What stands in the documents: fenced blocks, spans of code, links, headings (pure)."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^( *)(```+)([\w-]*)\s*$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """A shell block's commands: no prompts, comments or variables, long lines joined."""
        joined = self.text.replace("\\\n", " ")
        lines = (
            re.sub(r"^([$#] )?(\w+=\S+ )*(?=\S)", "", line.strip()) for line in joined.splitlines()
        )
        plain = (re.sub(r"\s+#\s.*$", "", line) for line in lines)
        return [" ".join(line.split()) for line in plain if line and not line.startswith("#")]


def blocks(path: Path) -> list[Block]:
    """Return a page's fenced blocks, indented ones with their indentation taken off."""
    found: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    begin, fence, language = 0, "", ""
    for number, line in enumerate(lines, 1):
        match = _FENCE.match(line)
        if match is None:
            continue
        if not fence:
            begin, fence, language = number, match[2], match[3]
        elif match[2] == fence and not match[3]:
            text = textwrap.dedent("\n".join(lines[begin : number - 1]))
            found.append(Block(path, begin, language, text + "\n"))
            fence = ""
    assert not fence, f"{path}:{begin} does not end"
    return found


def prose(path: Path) -> str:
    """Return a page without its fenced blocks."""
    kept, is_inside = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            is_inside = not is_inside
        elif not is_inside:
            kept.append(line)
    return "\n".join(kept)


def spans(path: Path) -> list[str]:
    """Return what a page sets as code within its lines."""
    return _SPAN.findall(re.sub(r"(?<=\S)\n(?=\S)", " ", prose(path)))


def links(path: Path) -> list[str]:
    """Return where a page's links go, and its pictures are."""
    return _LINK.findall(prose(path))


def anchors(path: Path) -> set[str]:
    """Return the fragments by which a page's headings are linked to."""
    return set(_slugs(_HEADING.findall(prose(path))))


def _slugs(headings: list[str]) -> Iterator[str]:
    for heading in headings:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        kept = "".join(mark for mark in text.lower() if mark.isalnum() or mark in " -_")
        yield kept.replace(" ", "-")
