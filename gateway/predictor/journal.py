"""Journal: ended calls on disk, so that a restart does not begin from nothing.

Vectors as float16 and lengths, never text; vectors leak something of a prompt all the same, so
the files are for their owner only. Two of them: when the newer is full it takes the older's place
in one rename. A kill loses what was not flushed and at most half a record, which is cut off.

A file is `MAGIC`, then frames of <length u32> <crc32 u32> <payload>: first a JSON header, then
names (`N`, number, UTF-8) and samples (`S`, model, stage, prompt tokens, tokens, ended, vector).
"""

import fcntl
import json
import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

import numpy as np

from gateway.predictor.query import Ended, Vector

MAGIC = b"HXLEN01\n"
FLUSH_BYTES = 1 << 16
MAX_FRAME_BYTES = 1 << 16
MAX_NAMES = 60_000

_FRAME = struct.Struct("<II")
_NAME = struct.Struct("<cH")
_SAMPLE = struct.Struct("<cHHIIB")
_ENDED = tuple(Ended)
_ENDED_NUMBER = {ended: number for number, ended in enumerate(_ENDED)}

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """One ended call."""

    model: str
    stage: str
    prompt_tokens: int
    tokens: int
    ended: Ended
    vector: Vector | None


class Journal:
    """Appends records to `path` and reads them back. Used by one thread at a time.

    `fingerprint` names what makes vectors comparable; of files written under another one only
    the lengths are read. Trouble with the disk is logged once and ends the writing, no more.
    """

    def __init__(self, path: Path, fingerprint: str, dim: int, max_records: int) -> None:
        self._path, self._fingerprint, self._dim = path, fingerprint, dim
        self._max_records = max_records
        self._buffer = bytearray()
        self._names: dict[str, int] = {}
        self._records = 0
        self._file: BinaryIO | None = None
        self._restorable: list[tuple[Path, int]] = []

    def open(self) -> None:
        """Get ready to append: repair what a kill left, or begin a new file."""
        older = self._path.with_name(self._path.name + ".old")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            whole = _scan(self._path)
            if whole is None or whole.fingerprint != self._fingerprint or whole.is_full:
                if whole is not None:
                    os.replace(self._path, older)
                self._begin()
            else:
                self._resume(whole)
        except OSError as trouble:
            self._give_up(trouble)
        # What there is to restore is fixed now: not what this process will append.
        for path in (older, self._path):
            found = _scan(path)
            if found is not None:
                self._restorable.append((path, found.end))

    def read(self) -> Iterator[Record]:
        """Yield what was there when it was opened, oldest first."""
        for path, end in self._restorable:
            try:
                with path.open("rb") as file:
                    yield from self._records_of(file, end)
            except OSError as trouble:
                log.warning("the length journal %s cannot be read: %s", path, trouble)

    def append(self, record: Record) -> None:
        """Take in one record; it reaches the file with the next flush."""
        if self._file is None:
            return
        model, stage = self._number(record.model), self._number(record.stage)
        head = _SAMPLE.pack(
            b"S",
            model,
            stage,
            min(record.prompt_tokens, 2**32 - 1),
            min(record.tokens, 2**32 - 1),
            _ENDED_NUMBER[record.ended],
        )
        vector = b"" if record.vector is None else record.vector.astype(np.float16).tobytes()
        self._frame(head + vector)
        self._records += 1
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush()
        if self._records >= self._max_records or len(self._names) >= MAX_NAMES:
            self._rotate()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        if self._file is None or not self._buffer:
            return
        try:
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as trouble:
            self._give_up(trouble)
        self._buffer.clear()

    def close(self) -> None:
        """Flush and let go of the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        self._take(descriptor)
        os.ftruncate(descriptor, 0)
        self._names, self._records = {}, 0
        self._buffer += MAGIC
        header = {"fingerprint": self._fingerprint, "dim": self._dim}
        self._frame(json.dumps(header).encode())
        self.flush()

    def _resume(self, whole: "_Scan") -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND)
        self._take(descriptor)
        os.ftruncate(descriptor, whole.end)
        self._names, self._records = whole.names, whole.records

    def _take(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "ab")
        os.fchmod(descriptor, 0o600)
        # Two processes writing one file would tear each other's frames.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _rotate(self) -> None:
        self.close()
        try:
            os.replace(self._path, self._path.with_name(self._path.name + ".old"))
            self._begin()
        except OSError as trouble:
            self._give_up(trouble)

    def _give_up(self, trouble: OSError) -> None:
        log.warning("the length journal %s is not written any more: %s", self._path, trouble)
        if self._file is not None:
            self._file.close()
        self._file = None
        self._buffer.clear()

    def _number(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = len(self._names)
            self._frame(_NAME.pack(b"N", number) + name.encode("utf-8", "replace")[:4096])
        return number

    def _frame(self, payload: bytes) -> None:
        self._buffer += _FRAME.pack(len(payload), crc32(payload)) + payload

    def _records_of(self, file: BinaryIO, end: int) -> Iterator[Record]:
        names: dict[int, str] = {}
        keeps_vectors = False
        for kind, payload in _frames(file, end):
            if kind == b"{":
                keeps_vectors = json.loads(payload).get("fingerprint") == self._fingerprint
            elif kind == b"N":
                names[_NAME.unpack_from(payload)[1]] = payload[_NAME.size :].decode()
            else:
                _, model, stage, prompt, tokens, ended = _SAMPLE.unpack_from(payload)
                vector = None
                if keeps_vectors and len(payload) > _SAMPLE.size:
                    halves = np.frombuffer(payload, np.float16, offset=_SAMPLE.size)
                    vector = halves.astype(np.float32)
                yield Record(names[model], names[stage], prompt, tokens, _ENDED[ended], vector)


@dataclass(slots=True)
class _Scan:
    """What a file holds, up to the last whole frame."""

    fingerprint: str
    end: int
    records: int
    names: dict[str, int]

    @property
    def is_full(self) -> bool:
        return len(self.names) >= MAX_NAMES


def _scan(path: Path) -> _Scan | None:
    """Return what a journal file holds; None if there is none or it is not one."""
    try:
        with path.open("rb") as file:
            found: _Scan | None = None
            end = len(MAGIC)
            for kind, payload in _frames(file, None):
                end += _FRAME.size + len(payload)
                if kind == b"{":
                    header = json.loads(payload)
                    found = _Scan(str(header.get("fingerprint")), end, 0, {})
                    continue
                if found is None:
                    return None
                found.end = end
                if kind == b"N":
                    number = _NAME.unpack_from(payload)[1]
                    found.names[payload[_NAME.size :].decode()] = number
                else:
                    found.records += 1
            return found
    except (OSError, ValueError):
        return None


def _frames(file: BinaryIO, end: int | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and payload of each whole frame up to `end`, or to the first torn one."""
    if file.read(len(MAGIC)) != MAGIC:
        return
    at = len(MAGIC)
    while end is None or at < end:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return
        length, check = _FRAME.unpack(head)
        if not 0 < length <= MAX_FRAME_BYTES:
            return
        payload = file.read(length)
        if len(payload) < length or crc32(payload) != check:
            return
        at += _FRAME.size + length
        yield payload[:1], payload
