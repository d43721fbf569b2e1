"""docs/architecture.md shows the contract and the imports that there are."""

import re

from tools.architecture import COMPOSITION, LOADER, PAGE, diagram, edges, layers, page, reduced


def test_the_page_is_what_the_contract_and_the_imports_say() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert page(text) == text, "run python -m tools.architecture"


def test_every_layer_and_every_arrow_stands_in_the_diagram() -> None:
    lines = diagram().splitlines()
    names = [name for row in layers() for name in row]
    arrows = {tuple(line.split(" --> ")) for line in map(str.strip, lines) if "-->" in line}

    assert lines[0] == "flowchart TB"
    for name in [*names, LOADER]:
        assert sum(line.strip().startswith(f'{name}["') for line in lines) == 1, name
    assert arrows == reduced(edges([*names, LOADER]))
    assert sum("subgraph" in line for line in lines) == len(layers())
    # Nothing in a label that Mermaid would read as its own.
    labels = re.findall(r'\["(.*)"\]', diagram())
    assert not any(re.search(r'["`]|<(?!/?b>|br/>)', label) for label in labels)


def test_arrows_point_inwards() -> None:
    rows = layers()
    depth = {name: number for number, row in enumerate(rows) for name in row}

    outwards = {
        (source, target)
        for source, target in edges([*depth, LOADER])
        if LOADER not in (source, target) and depth[source] >= depth[target]
    }
    assert outwards == set()
    assert depth[COMPOSITION] < depth["core"]


def test_what_a_longer_way_says_is_left_out() -> None:
    found = reduced({("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d"), ("x", "d")})

    assert found == {("a", "b"), ("b", "c"), ("c", "d"), ("x", "d")}
