"""setup.py: dataclasses of compiled modules have their initialisers written out."""

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

SETUP = Path(__file__).parent.parent / "setup.py"
SOURCE = '''
from dataclasses import dataclass, field


class Record:
    pass


@dataclass(slots=True, kw_only=True)
class Call:
    """A call."""

    model: str
    tokens: int = 3
    tags: list[str] = field(default_factory=list)
    note: str = field(repr=False)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.model)


@dataclass
class Point(Record):
    x: float
    y: float = 0.5


@dataclass
class Place(Point):
    name: str = ""


class Plain:
    x: int = 0
'''


@pytest.fixture(scope="module")
def written() -> str:
    """The module as it is compiled."""
    with_initializers = runpy.run_path(str(SETUP), run_name="setup")["with_initializers"]
    text = with_initializers(SOURCE)
    assert isinstance(text, str)
    return text


def test_a_name_is_bound_to_errors_of_one_type_in_a_compiled_coroutine() -> None:
    # mypyc gives it the first one's type, and what is bound to it later raises TypeError.
    setup = runpy.run_path(str(SETUP), run_name="setup")
    paths = {path for pattern in setup["COMPILED"] for path in SETUP.parent.glob(pattern)}
    assert len(paths) > 20
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef):
                handlers = [one for one in ast.walk(node) if isinstance(one, ast.ExceptHandler)]
                bound = {
                    (one.name, ast.unparse(one.type)) for one in handlers if one.name and one.type
                }
                names = [name for name, _ in bound]
                assert len(set(names)) == len(names), f"{path.name}: {node.name} binds {bound}"


def _run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "sample"}
    exec(compile(source, "sample", "exec"), names)
    return names


def test_what_is_made_is_what_the_dataclass_itself_would_make(written: str) -> None:
    given, meant = _run(written), _run(SOURCE)

    for kwargs in ({"model": "m", "note": "n"}, {"model": "mm", "note": "", "tags": ["a"]}):
        one, other = given["Call"](**kwargs), meant["Call"](**kwargs)
        assert repr(one) == repr(other)
        assert (one.note, one.length) == (other.note, other.length)
    assert repr(given["Point"](1, 2)) == repr(meant["Point"](1, 2))
    assert repr(given["Place"](1, name="p")) == repr(meant["Place"](1, name="p"))
    assert given["Call"](model="m", note="").tags is not given["Call"](model="m", note="").tags


def test_arguments_are_asked_for_as_the_dataclass_would(written: str) -> None:
    names = _run(written)

    with pytest.raises(TypeError):
        names["Call"]("m", note="n")
    with pytest.raises(TypeError):
        names["Call"](model="m")


def test_only_dataclasses_whose_fields_are_all_their_own_are_changed(written: str) -> None:
    assert written.count("def __init__") == 2
    assert "@dataclass(init=False, slots=True, kw_only=True)\nclass Call" in written
    assert "@dataclass(init=False)\nclass Point" in written
    assert "@dataclass\nclass Place" in written
    left = [line for line in written.splitlines() if "init=False" not in line]
    assert [line for line in SOURCE.splitlines() if line not in left] == [
        "@dataclass(slots=True, kw_only=True)",
        "    length: int = field(init=False)",
    ]
