"""Draws the diagram and the rules in docs/architecture.md: `python -m tools.architecture`.

Layers and rules come from the import contract in pyproject.toml, arrows from the imports that there
are. With `--check` it changes nothing and ends with 1 if the page is not what it would write.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- made by python -m tools.architecture -->"
END = "<!-- end of what is made -->"
COMPOSITION = "app"
"""The node that stands for the composition root, and for modules of the package's top beside it…"""
BESIDE = {"keys_file": "config", "mistakes": "config"}
"""…but for these, which belong to another."""
LOADER = "loadgen"

Edges = set[tuple[str, str]]


def layers() -> list[list[str]]:
    """Return the layers of the contract, the outermost first, and who stands in each."""
    contract = next(contract for contract in _contracts() if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def rules() -> list[tuple[str, list[str], list[str]]]:
    """Return the other contracts: a name, who must not import, and what."""
    return [
        (contract["name"], contract["source_modules"], contract["forbidden_modules"])
        for contract in _contracts()
        if contract["type"] == "forbidden"
    ]


def edges(nodes: Iterable[str]) -> Edges:
    """Return who imports whom."""
    known = set(nodes)
    found: Edges = set()
    for folder in ("gateway", LOADER):
        for path in (ROOT / folder).rglob("*.py"):
            source = _node(".".join(path.relative_to(ROOT).with_suffix("").parts), known)
            for module in _imports(path):
                target = _node(module, known)
                if target and source and target != source:
                    found.add((source, target))
    return found


def reduced(all_edges: Edges) -> Edges:
    """Return the arrows without those that a longer way says as well."""
    below: dict[str, set[str]] = {}
    for source, target in all_edges:
        below.setdefault(source, set()).add(target)

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        if start == goal:
            return True
        seen.add(start)
        return any(reaches(next_, goal, seen) for next_ in below.get(start, set()) - seen)

    return {
        (source, target)
        for source, target in all_edges
        if not any(reaches(other, target, {source}) for other in below[source] - {target})
    }


def diagram() -> str:
    """Return the layers and arrows in Mermaid's language."""
    rows = layers()
    nodes = [name for row in rows for name in row] + [LOADER]
    lines = ["flowchart TB"]
    for number, row in enumerate(rows):
        lines.append(f'  subgraph layer{number}[" "]')
        lines.append("    direction LR")
        lines += [f'    {name}["<b>{name}</b><br/>{_says(name)}"]' for name in row]
        lines.append("  end")
    lines.append(f'  {LOADER}["<b>{LOADER}</b><br/>{_says(LOADER)}"]')
    lines += [f"  {source} --> {target}" for source, target in sorted(reduced(edges(nodes)))]
    return "\n".join(lines)


def made() -> str:
    """Return what stands between the marks."""
    lines = [
        "```mermaid",
        diagram(),
        "```",
        "",
        "| rule | who | must not import |",
        "|---|---|---|",
    ]
    for name, sources, forbidden in rules():
        lines.append(f"| {name} | {_code(sources)} | {_code(forbidden)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return a page with what is made put in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made()}\n\n{END}{after}"


def _contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def _node(module: str, known: set[str]) -> str | None:
    top, _, rest = module.partition(".")
    if top == LOADER:
        return LOADER
    if top != "gateway":
        return None
    name = rest.partition(".")[0]
    if name in known:
        return name
    return BESIDE.get(name, COMPOSITION) if _is_top_module(name) else None


def _is_top_module(name: str) -> bool:
    return name not in ("", "__init__", "__main__") and (ROOT / "gateway" / f"{name}.py").exists()


def _imports(path: Path) -> Iterator[str]:
    for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module and not item.level:
            yield item.module
            yield from (f"{item.module}.{alias.name}" for alias in item.names)


def _says(name: str) -> str:
    """Return the first sentence of what a package or module says of itself."""
    folder = ROOT / (name if name == LOADER else f"gateway/{name}")
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    sentence = sentence.removeprefix(f"{name}: ")
    marks: Mapping[str, str] = {'"': "#quot;", "`": "", "<": "#lt;", ">": "#gt;"}
    return "".join(marks.get(mark, mark) for mark in sentence)


def _code(modules: Iterable[str]) -> str:
    return ", ".join(f"`{module}`" for module in modules)


def main() -> int:
    """Write the page, or say whether it is current."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(page(text) != text)
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
