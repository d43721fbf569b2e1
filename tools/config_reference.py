"""Writes docs/configuration.md from the settings classes: `python -m tools.config_reference`.

With `--check` it changes nothing and ends with 1 if the file is not what it would write.
"""

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from gateway.config.settings import ENV_PREFIX, Settings

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = Path(__file__).parent / "config_reference.md"
SIMPLE = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "text, secret",
}
BOUNDS = ((Gt, "gt", ">"), (Ge, "ge", "≥"), (Lt, "lt", "<"), (Le, "le", "≤"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the file."""

    name: str
    type: str
    default: str
    meaning: str
    variable: str
    """The environment variable that sets it; empty: none does, by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The keys that stand in one place."""

    place: str
    """Such as `queue` or `backends[].tls`; empty: the top."""
    meaning: str
    keys: tuple[Key, ...]


def sections() -> list[Section]:
    """Return everything that can be set, in the order of the classes."""
    return list(sections_of(Settings, "", ENV_PREFIX, "Keys that stand alone, and what is below."))


def page() -> str:
    """Return the whole page."""
    parts = [HEAD.read_text(encoding="utf-8").rstrip("\n")]
    for section in sections():
        title = f"`{section.place}`" if section.place else "Top level"
        lines = [f"## {title}", "", section.meaning, ""]
        has_variables = any(key.variable for key in section.keys)
        columns = ["key", "type", "default", "meaning"] + ["variable"] * has_variables
        lines += [_row(columns), _row(["---"] * len(columns))]
        for key in section.keys:
            cells = [f"`{key.name}`", key.type, key.default, key.meaning]
            variable = f"`{key.variable}`" if key.variable else ""
            lines.append(_row(cells + [variable] * has_variables))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def sections_of(
    model: type[BaseModel], place: str, prefix: str | None, meaning: str
) -> Iterator[Section]:
    """Yield a class's own section, then those of the classes in it."""
    hints = get_type_hints(model, include_extras=True)
    said = docstrings(model)
    keys, below = [], []
    for name, field in model.model_fields.items():
        inner, brackets = _model_in(hints[name])
        here = f"{place}.{name}" if place else name
        variable = f"{prefix}{name.upper()}" if prefix is not None else None
        told = said.get(name) or field.description or ""
        if inner is not None:
            is_plain = not brackets
            deeper = f"{variable}__" if variable is not None and is_plain else None
            about = told or first_paragraph(inner)
            below += list(sections_of(inner, here + brackets, deeper, about))
        keys.append(
            Key(
                name=name,
                type=f"[below](#{anchor(here + brackets)})" if inner else words(hints[name]),
                default=_default(field, inner),
                meaning=told or (first_paragraph(inner) if inner else ""),
                variable="" if variable is None or (inner and not brackets) else variable,
            )
        )
    yield Section(place=place, meaning=meaning, keys=tuple(keys))
    yield from below


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands in the source below each of a class's fields, its bases' included."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls.__module__ != model.__module__:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def first_paragraph(model: type[BaseModel]) -> str:
    """Return what a class says of itself."""
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


def anchor(place: str) -> str:
    """Return the fragment by which a section's heading is linked to."""
    kept = (mark for mark in place.lower() if mark.isalnum() or mark in "_-")
    return "".join(kept)


def words(hint: Any) -> str:
    """Return a type in words."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = ", ".join(_limits(arguments[1:]))
        return f"{words(arguments[0])} {limits}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join("nothing" if kind is type(None) else words(kind) for kind in arguments)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of: {words(arguments[0])}"
    if origin is dict:
        return f"by name: {words(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{member.value}`" for member in hint)
    return str(getattr(hint, "__name__", hint))


def _limits(metadata: tuple[object, ...]) -> Iterator[str]:
    flat: list[object] = []
    for item in metadata:
        flat += item.metadata if isinstance(item, FieldInfo) else [item]
    for item in flat:
        for kind, name, sign in BOUNDS:
            if isinstance(item, kind):
                yield f"{sign} {getattr(item, name):g}"


def _model_in(hint: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the class that a type is made of, and how the file writes that there are many."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint, ""
    brackets = {tuple: "[]", dict: ".<name>"}.get(get_origin(hint) or hint, "")
    for inner in get_args(hint):
        model, more = _model_in(inner)
        if model is not None:
            return model, brackets + more
    return None, ""


def _default(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if field.is_required():
        return "**needed**"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if inner is not None:
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if value not in ((), {}) else "empty"


def main() -> int:
    """Write the page, or say whether it is current."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
