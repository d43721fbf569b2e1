"""StateFile: whole or not at all, whatever happens on the way."""

import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.state import StateFile

OLD: dict[str, object] = {"learned": [1, 2.5]}
NEW: dict[str, object] = {"learned": [3]}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "state.json")
    assert file.read() is None

    file.write(OLD)
    file.write(NEW)

    assert file.read() == NEW
    assert os.stat(tmp_path / "deep" / "state.json").st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.json"]


class Killed(BaseException):
    """The process ends here: nothing is cleaned up."""


@pytest.mark.parametrize("victim", ["open", "fsync", "replace"])
def test_who_is_killed_while_writing_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write(OLD)
    real = getattr(os, victim)

    def kill(*_: object, **__: object) -> object:
        raise Killed

    for _ in range(2):  # the left-overs of the first must not disturb the second
        monkeypatch.setattr(os, victim, kill)
        with pytest.raises(Killed):
            file.write(NEW)
        monkeypatch.setattr(os, victim, real)
        assert file.read() in (OLD, NEW)

    file.write(NEW)
    assert file.read() == NEW


@given(st.data())
def test_a_damaged_file_is_found_out_wherever_the_damage_is(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    StateFile(path).write(OLD)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from([whole[:at], whole[:at] + b"\x00" + whole[at + 1 :], b"\xff" + whole])
    )
    path.write_bytes(damaged)

    assert StateFile(path).read() in (None, OLD)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 9}', '{"version":1,"crc32":0,"content":"{}"}']
)
def test_a_damaged_file_is_put_aside_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)

    with caplog.at_level(logging.ERROR):
        assert StateFile(path).read() is None

    assert "state.json.corrupt" in caplog.text
    assert (tmp_path / "state.json.corrupt").read_text() == text
    StateFile(path).write(NEW)
    assert StateFile(path).read() == NEW


def test_it_holds_nothing_but_what_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    StateFile(path).write(NEW)

    assert json.loads(json.loads(path.read_text())["content"]) == NEW
