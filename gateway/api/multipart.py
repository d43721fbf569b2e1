"""FormScanner: finds small fields in multipart/form-data as it arrives, without keeping the rest.

It judges nothing but its own bounds: what an engine makes of a form is the engine's to say.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

MAX_PART_HEAD_BYTES = 16 * 1024
MAX_FIELD_BYTES = 64 * 1024
_BOUNDARY = re.compile(
    rb'multipart/form-data\s*;(?:.*;)?\s*boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))',
    re.IGNORECASE | re.DOTALL,
)
_DISPOSITION = re.compile(rb"content-disposition\s*:\s*form-data\b([^\r\n]*)", re.IGNORECASE)
_NAME = re.compile(rb';\s*name\s*=\s*(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)
_FILE_NAME = re.compile(rb";\s*filename\*?\s*=", re.IGNORECASE)


class FormError(Exception):
    """The form cannot be read; says why, in a sentence."""


class Field(NamedTuple):
    """A field's value, and where in the form it stands."""

    value: bytes
    begin: int
    end: int


class _At(Enum):
    CONTENT = auto()
    """Before the next delimiter: in a part's content, or before the first part."""
    BOUNDARY = auto()
    """Behind a delimiter."""
    HEAD = auto()
    """In a part's headers."""
    END = auto()


def boundary_of(content_type: bytes) -> bytes | None:
    """Return the boundary that a content type names."""
    match = _BOUNDARY.search(content_type)
    return (match[1] or match[2]) if match else None


class FormScanner:
    """Reads one form. Time and memory do not depend on how it is cut, nor on files' sizes."""

    def __init__(self, boundary: bytes, wanted: frozenset[bytes]) -> None:
        self.fields: dict[bytes, Field] = {}
        """The wanted fields that are complete; of a name that comes twice, the last."""
        self._delimiter = b"\r\n--" + boundary
        self._wanted = wanted
        # The first delimiter has no line before it.
        self._rest = bytearray(b"\r\n")
        self._offset = -2
        """Where in the form `_rest` begins."""
        self._at = _At.CONTENT
        self._name: bytes | None = None
        """The wanted field whose content this is."""

    def feed(self, piece: bytes) -> None:
        """Take in what came."""
        self._rest += piece
        while self._step():
            pass

    def _step(self) -> bool:
        """Go on by one element; return whether there may be more."""
        match self._at:
            case _At.CONTENT:
                return self._content()
            case _At.BOUNDARY:
                return self._boundary()
            case _At.HEAD:
                return self._head()
            case _At.END:
                self._consume(len(self._rest))
                return False

    def _content(self) -> bool:
        end = self._rest.find(self._delimiter)
        if self._name is not None and (len(self._rest) if end < 0 else end) > MAX_FIELD_BYTES:
            name = self._name.decode("ascii", "replace")
            raise FormError(f"`{name}` is longer than {MAX_FIELD_BYTES} bytes.")
        if end < 0:
            if self._name is None:
                self._consume(max(len(self._rest) - len(self._delimiter) + 1, 0))
            return False
        if self._name is not None:
            begin = self._offset
            self.fields[self._name] = Field(bytes(self._rest[:end]), begin, begin + end)
        self._consume(end + len(self._delimiter))
        self._at = _At.BOUNDARY
        return True

    def _boundary(self) -> bool:
        if len(self._rest) < 2:
            return False
        if self._rest.startswith(b"--"):
            self._at = _At.END
            return True
        end = self._end_of_head(b"\r\n")
        if end < 0:
            return False
        # The line's end stays: a part may have no headers at all.
        self._consume(end)
        self._at = _At.HEAD
        return True

    def _head(self) -> bool:
        end = self._end_of_head(b"\r\n\r\n")
        if end < 0:
            return False
        self._name = self._wanted_name(bytes(self._rest[:end]))
        self._consume(end + 4)
        self._at = _At.CONTENT
        return True

    def _end_of_head(self, mark: bytes) -> int:
        end = self._rest.find(mark)
        if (len(self._rest) if end < 0 else end) > MAX_PART_HEAD_BYTES:
            raise FormError("A part of the form has no end of its headers.")
        return end

    def _wanted_name(self, head: bytes) -> bytes | None:
        disposition = _DISPOSITION.search(head)
        if disposition is None or _FILE_NAME.search(disposition[1]):
            return None
        match = _NAME.search(disposition[1])
        name = (match[1] if match[1] is not None else match[2]) if match else None
        return name if name in self._wanted else None

    def _consume(self, count: int) -> None:
        del self._rest[:count]
        self._offset += count
