"""StateFile: what was learned, on disk, whole or not at all.

Written beside its place, flushed to the disk, then renamed over it: whoever is killed at any
instant leaves the old file or the new one. A file that is damaged all the same is put aside and
named in the log, and the gateway begins from nothing.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

VERSION = 1

log = logging.getLogger(__name__)


class StateFile:
    """One JSON document in a directory of its own. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, object] | None:
        """Return what was written last; None if there is nothing that can be read."""
        try:
            return _checked(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as trouble:
            log.warning("%s cannot be read: %s", self._path, trouble)
        except ValueError as trouble:
            self.put_aside(str(trouble))
        return None

    def put_aside(self, why: str) -> None:
        """Make room for a new file, and keep the damaged one for whoever wants to look."""
        aside = self._path.with_name(self._path.name + ".corrupt")
        try:
            os.replace(self._path, aside)
            log.error("%s is damaged (%s): put aside as %s", self._path, why, aside.name)
        except OSError as trouble:
            log.warning("%s is damaged and cannot be put aside: %s", self._path, trouble)

    def write(self, content: Mapping[str, object]) -> None:
        """Replace what is there; OSError if that fails, and then the old file is as it was."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        body = json.dumps(content, separators=(",", ":"))
        text = json.dumps({"version": VERSION, "crc32": crc32(body.encode()), "content": body})
        beside = self._path.with_name(self._path.name + ".new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._path)
        _flush_directory(self._path.parent)


def _checked(raw: bytes) -> dict[str, object]:
    document = json.loads(raw)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError("not of this version")
    body = document.get("content")
    if not isinstance(body, str) or crc32(body.encode()) != document.get("crc32"):
        raise ValueError("its sum is wrong")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError("it holds no object")  # noqa: TRY004 - a damaged file, no wrong argument
    return content


def _flush_directory(path: Path) -> None:
    """Have the rename itself on the disk, where the system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
