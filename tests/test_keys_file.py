"""keys.yaml: what is stored, what is refused."""

import os
from pathlib import Path

import pytest

from gateway.keys_file import KeyEntry, hash_of, new_key, read_keys, write_keys
from gateway.mistakes import ConfigError

HASH = hash_of("hsk-1")


def mistakes(tmp_path: Path, text: str) -> str:
    """What is wrong with a file of this text."""
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_keys(path)
    return str(error.value).replace(str(path), "file")


def test_what_is_written_can_be_read_and_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    entries = (
        KeyEntry(name="a", sha256=hash_of("1"), models=("m1",), weight=2.0, rpm=60),
        KeyEntry(name="b", sha256=hash_of("2"), tenant="a", weight=2.0),
    )

    write_keys(path, entries)

    assert read_keys(path) == entries
    assert [entry.owner for entry in entries] == ["a", "a"]
    assert os.stat(path).st_mode & 0o077 == 0
    assert os.listdir(tmp_path) == ["keys.yaml"]


def test_writing_through_a_link_leaves_the_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "keys.yaml"
    real.write_text("keys: []\n")
    link.symlink_to(real)

    write_keys(link, [KeyEntry(name="a", sha256=HASH)])

    assert link.is_symlink()
    assert [entry.name for entry in read_keys(real)] == ["a"]


def test_no_two_keys_are_alike_and_none_can_be_read_off_the_file(tmp_path: Path) -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(len(key) for key in keys) > 40

    key = keys.pop()
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="a", sha256=hash_of(key))])

    assert key not in (tmp_path / "keys.yaml").read_text()


def test_an_empty_list_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n")

    assert read_keys(path) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keys: 7\n", "file:1: keys: must be a list"),
        ("colour: red\n", "file:1: colour: is no key that HexSage knows"),
        (f"keys:\n- name: a\n  sha256: {HASH}\n  rpm: 0\n", "file:4: keys[0].rpm: "),
        (f"keys:\n- name: a\n  sha256: {HASH}\n  concurrency: 0\n", "keys[0].concurrency: "),
        (f"keys:\n- name: a\n  sha256: {HASH}\n  queue_share: 0\n", "keys[0].queue_share: "),
        (f"keys:\n- name: 'a b'\n  sha256: {HASH}\n", "keys[0].name: "),
        ("keys:\n- name: a\n  sha256: hsk-plain\n", "keys[0].sha256: "),
        ("keys:\n- {name: a, sha256: x}\n- 7\n", "keys[1]"),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, text: str, told: str) -> None:
    assert told in mistakes(tmp_path, text)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"name": "a", "sha256": hash_of("2")}, "the name 'a' is used twice"),
        ({"name": "b", "sha256": HASH}, "the key of 'b' is there twice"),
        ({"name": "b", "sha256": hash_of("2"), "tenant": "a", "weight": 2}, "different weights"),
        ({"name": "anonymous", "sha256": hash_of("2")}, "callers without a key"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    tmp_path: Path, second: dict[str, object], told: str
) -> None:
    path = tmp_path / "keys.yaml"
    entries = [KeyEntry(name="a", sha256=HASH), KeyEntry.model_validate(second)]

    with pytest.raises(ConfigError, match=told):
        write_keys(path, entries)

    assert not path.exists()
