"""What the documents name is there: commands and their options, files, links, make's targets."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from gateway.__main__ import COMMANDS
from loadgen.__main__ import _parser as loadgen_parser
from tests.docs.markdown import PAGES, ROOT, anchors, blocks, links, spans

MADE_BY_RUNNING = ("demo-report/", "report/", "state/")
PAGE_NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def options(program: str, command: str) -> set[str]:
    """The options of a subcommand."""
    parser = argparse.ArgumentParser()
    if program == "loadgen":
        (actions,) = (
            action
            for action in loadgen_parser()._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        parser = actions.choices[command]
    else:
        import_module(COMMANDS[command][0]).add_arguments(parser)
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    parsers = [parser, *(below for action in nested for below in action.choices.values())]
    return {name for each in parsers for name in each._option_string_actions}


def said(path: Path) -> list[str]:
    """Everything on a page that may be a command: spans, and lines of shell blocks."""
    shell = [block for block in blocks(path) if block.language in ("bash", "console")]
    return spans(path) + [command for block in shell for command in block.commands]


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_commands_take_the_options_that_they_are_shown_with(name: str) -> None:
    wrong: list[str] = []
    for text in said(ROOT / name):
        words = re.sub(r"^(\w+=\S+ )+", "", text).split()
        if len(words) < 2 or words[0] not in ("hexsage", "loadgen"):
            continue
        known = {"sweep", "replay", "compare"} if words[0] == "loadgen" else set(COMMANDS)
        for command in words[1].split("|"):
            if not re.fullmatch(r"[a-z]+", command):
                continue
            if command not in known:
                wrong.append(text)
                continue
            given = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
            wrong += [text] if not given <= options(words[0], command) else []
    assert wrong == []


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_make_has_the_targets_that_are_named(name: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {text.split()[1] for text in said(ROOT / name) if re.match(r"make [a-z]", text)}

    assert named <= targets


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_python_finds_what_it_is_told_to_run(name: str) -> None:
    missing: list[str] = []
    for text in said(ROOT / name):
        match = re.match(r"(?:\w+=\S+ )*python3? (?:-m )?([\w./-]+)", text)
        if match is None or match[1] in ("venv", "pip", "pytest"):
            continue
        path = ROOT / (match[1] if "/" in match[1] else match[1].replace(".", "/"))
        found = next((p for p in (path, path.with_suffix(".py"), path / "__main__.py")
                      if p.is_file()), None)  # fmt: skip
        if found is None:
            missing.append(text)
            continue
        source = found.read_text(encoding="utf-8")
        flags = [word.partition("=")[0] for word in shlex.split(text) if word.startswith("--")]
        missing += [text] if not all(f'"{flag}"' in source for flag in flags) else []
    assert missing == []


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, fragment = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (fragment and fragment not in anchors(path)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_files_that_are_named_are_there(name: str) -> None:
    tops = {entry.name for entry in ROOT.iterdir() if entry.is_dir()}
    named = {text for text in spans(ROOT / name) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", text)}

    missing = [
        text
        for text in sorted(named)
        if text.partition("/")[0] in tops
        and not text.startswith(MADE_BY_RUNNING)
        and not (ROOT / text).exists()
    ]
    assert missing == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        linked = (link.partition("#")[0] for link in links(page) if "://" not in link)
        todo += [(page.parent / link).resolve() for link in linked if link]
    pages = {path for path in PAGES if "decisions" not in path.parts}

    assert sorted(str(path.relative_to(ROOT)) for path in pages - reached) == []
