"""README.md names every case, and what it names is there."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
GAPS = {3, 22, 24, 30, 33, 36, 50, 53, 54, 60, 69, 72, 79, 82, 91, 107, 115, 125, 134, 145, 151}
GAPS |= {155, 175, 179, 196}
CASES = set(range(1, 203)) - GAPS
"""The numbers of the list that the table follows."""
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[int, str]]:
    """The table's cases and what stands for each."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return [(int(number), said) for number, _, said in ROW.findall(text)]


def test_every_case_has_its_row() -> None:
    assert len(CASES) == 177
    assert [number for number, _ in rows()] == sorted(CASES)


def test_a_row_names_tests_or_a_reason() -> None:
    for number, said in rows():
        reason = TEST.sub("", said).strip(" ,;")
        assert TEST.search(said) or len(reason) > 20, f"case {number} says nothing"


def test_tests_that_are_named_exist() -> None:
    there: dict[str, set[str]] = {}
    for number, said in rows():
        for path, name in TEST.findall(said):
            if path not in there:
                tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
                functions = ast.FunctionDef | ast.AsyncFunctionDef
                there[path] = {node.name for node in tree.body if isinstance(node, functions)}
            assert name in there[path], f"case {number}: no {name} in tests/{path}"
