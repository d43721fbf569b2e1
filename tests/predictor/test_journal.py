"""The journal survives kills, rotates, and never holds text."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.predictor.journal import Journal, Record
from gateway.predictor.query import Ended


def a_record(number: int, *, vector: bool = True, stage: str = "s") -> Record:
    """Return a record that tells its number."""
    row = np.full(4, 0.5, np.float32) if vector else None
    return Record("m", stage, 100, number, Ended.FINISHED, row)


def a_journal(path: Path, *, fingerprint: str = "f", max_records: int = 1000) -> Journal:
    """Return an open journal of vectors of four dimensions."""
    journal = Journal(path, fingerprint, 4, max_records)
    journal.open()
    return journal


def written(path: Path, count: int) -> None:
    """Write so many records."""
    journal = a_journal(path)
    for number in range(count):
        journal.append(a_record(number))
    journal.close()


def numbers(journal: Journal) -> list[int]:
    """Return which records there are to restore, and close."""
    journal.close()
    return [record.tokens for record in journal.read()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lengths.journal"


def test_what_was_written_is_read_back(path: Path) -> None:
    journal = a_journal(path)
    records = [
        Record("m", "stage ü", 7, 70, Ended.FINISHED, np.array([1, 0, -1, 0.5], np.float32)),
        Record("n", "-", 2**31, 2**31, Ended.CAPPED, None),
        Record("m", "-", 1, 1, Ended.ABORTED, None),
    ]
    for record in records:
        journal.append(record)
    journal.close()

    again = a_journal(path)
    again.close()
    for found, record in zip(again.read(), records, strict=True):
        assert (found.model, found.stage, found.prompt_tokens, found.tokens, found.ended) == (
            (record.model, record.stage, record.prompt_tokens, record.tokens, record.ended)
        )
        assert (found.vector is None) == (record.vector is None)
        if found.vector is not None and record.vector is not None:
            assert found.vector == pytest.approx(record.vector, abs=1e-3)


def test_only_its_owner_may_read_it(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    written(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_kill_at_any_byte_loses_the_tail_only(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    written(path, 20)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])

    left = numbers(a_journal(path))
    journal = a_journal(path)
    journal.append(a_record(99))
    journal.close()

    assert left == list(range(len(left)))
    assert numbers(a_journal(path)) == [*left, 99]


def test_garbage_after_the_tail_is_cut_off(path: Path) -> None:
    written(path, 5)
    with path.open("ab") as file:
        file.write(os.urandom(300))
    written(path, 2)
    assert numbers(a_journal(path)) == [0, 1, 2, 3, 4, 0, 1]


def test_a_file_that_is_no_journal_is_begun_anew(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("something else")
    written(path, 3)
    assert numbers(a_journal(path)) == [0, 1, 2]


def test_it_rotates_and_stays_bounded(path: Path) -> None:
    journal = a_journal(path, max_records=10)
    for number in range(95):
        journal.append(a_record(number))
    journal.close()
    assert numbers(a_journal(path, max_records=10)) == list(range(80, 95))
    assert len(list(path.parent.iterdir())) == 2


def test_under_another_embedder_lengths_are_kept_and_vectors_are_not(path: Path) -> None:
    written(path, 3)
    journal = a_journal(path, fingerprint="other")
    assert [(r.tokens, r.vector) for r in journal.read()] == [(0, None), (1, None), (2, None)]
    journal.append(a_record(7))
    journal.close()
    again = a_journal(path, fingerprint="other")
    again.close()
    assert [record.vector is not None for record in again.read()] == [False, False, False, True]


def test_what_is_appended_now_is_not_restored_now(path: Path) -> None:
    written(path, 2)
    journal = a_journal(path)
    reading = journal.read()
    next(reading)
    journal.append(a_record(9))
    journal.flush()
    assert [record.tokens for record in reading] == [1]
    journal.close()


def test_a_disk_that_fails_ends_the_journal_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    journal = a_journal(tmp_path / "file" / "journal")
    journal.append(a_record(1))
    journal.close()
    assert list(journal.read()) == []
    assert "is not written any more" in caplog.text


def test_a_second_process_does_not_write_into_the_first_ones_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = a_journal(path)
    second = a_journal(path)
    second.append(a_record(2))
    first.append(a_record(1))
    second.close()
    first.close()
    assert "is not written any more" in caplog.text
    assert numbers(a_journal(path)) == [1]
