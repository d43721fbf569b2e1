"""`hexsage keys`."""

from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.keys_file import hash_of, read_keys


def run(path: Path, *words: str) -> int:
    """Run one action on a file."""
    return main(["keys", *words, "--file", str(path)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "keys.yaml"


def test_a_key_is_shown_once_and_kept_as_a_hash(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(path, "create", "team-a", "--models", "m1,m2", "--rpm", "5", "--weight", "2") == 0
    shown = capsys.readouterr()
    key = shown.out.strip()

    (entry,) = read_keys(path)
    assert entry.sha256 == hash_of(key)
    assert (entry.models, entry.rpm, entry.weight) == (("m1", "m2"), 5, 2.0)
    assert key not in path.read_text() + shown.err


def test_keys_are_listed_without_what_would_open_a_door(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path, "create", "a", "--tpm", "1000")
    run(path, "create", "b", "--tenant", "a")
    keys = capsys.readouterr().out.split()

    assert run(path, "list") == 0

    listed = capsys.readouterr().out
    first, second = listed.splitlines()
    assert first.startswith("a  tenant=a  sha256=")
    assert "tpm=1000" in first
    assert second.startswith("b  tenant=a  ")
    assert not any(key in listed for key in keys)
    assert all(entry.sha256 not in listed for entry in read_keys(path))


def test_a_revoked_key_is_gone(path: Path) -> None:
    for name in "abc":
        run(path, "create", name)

    assert run(path, "revoke", "a", "c") == 0

    assert [entry.name for entry in read_keys(path)] == ["b"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create", "a"), "used twice"),
        (("create", "b", "--rpm", "0"), "rpm: "),
        (("create", "b", "--queue-share", "2"), "queue_share: "),
        (("revoke", "nobody"), "no key named nobody"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    run(path, "create", "a")
    before = path.read_bytes()
    capsys.readouterr()

    assert run(path, *words) == 1

    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""
    assert path.read_bytes() == before


def test_there_is_nothing_to_list_where_there_is_no_file(path: Path) -> None:
    assert run(path, "list") == 1


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "keys.yaml"

    assert run(path, "create", "a") == 1
    shown = capsys.readouterr()
    assert shown.err == f"{path}: cannot be written (No such file or directory)\n"
    assert shown.out == ""
