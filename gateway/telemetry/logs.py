"""Logs: what is said on standard error, as text or as JSON lines, by a thread of its own.

What reads standard error may be slow; the event loop must not wait for it. A record's extras are
`request_id`, which call it is about, and `fields`, what else is told in words of a closed set.
"""

import logging
import queue
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

MAX_UNWRITTEN = 10_000
"""Lines that may wait for a slow reader before they are dropped, and counted."""
CLOSE_S = 2.0
"""How long the end waits for what is unwritten."""


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self, process: str = "") -> None:
        """`process` says which one of several this is; empty: there is only one."""
        where = f"{process} %(process)d " if process else ""
        super().__init__(f"%(asctime)s %(levelname)s {where}%(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, with the record's fields at its end; no message begins another line."""
        line = super().formatMessage(record)
        line = "".join(_shown(mark) for mark in line) if not line.isprintable() else line
        told = "".join(f" {name}={_plain(value)}" for name, value in fields_of(record).items())
        return line + told


class JsonFormatter(logging.Formatter):
    """A JSON object in one line, for machines."""

    def __init__(self, process: str = "") -> None:
        """`process` says which one of several this is; empty: there is only one."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line |= {"process": self._process, "pid": record.process}
        line |= fields_of(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_PASSTHROUGH_DATACLASS).decode()


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return what a record tells besides its message."""
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    request_id = getattr(record, "request_id", None)
    if request_id is not None:
        fields = {"request_id": request_id, **fields}
    return fields


class Aside(logging.Handler):
    """Has lines written by a thread; they are dropped when too many are unwritten."""

    def __init__(self, stream: TextIO, max_unwritten: int = MAX_UNWRITTEN) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(max_unwritten)
        self._thread = threading.Thread(target=self._write, name="logs", daemon=True)
        self._thread.start()
        self.dropped = 0
        """Lines lost because nobody read them in time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written, soon."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - as every handler: logging must not break what logs
            self.handleError(record)

    def close(self) -> None:
        """Write what is left, if that is soon done."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=CLOSE_S)
                self._thread.join(CLOSE_S)
            except queue.Full:
                pass
        super().close()

    def _write(self) -> None:
        told = 0
        while (line := self._lines.get()) is not None:
            lost = self.dropped - told
            told += lost
            note = f"{lost} lines of the log were lost: nobody read them in time\n" if lost else ""
            try:
                self._stream.write(f"{line}\n{note}")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more, or it is closed
                self.dropped += 1


def set_up(
    form: Literal["text", "json"], level: str, process: str = "", stream: TextIO | None = None
) -> Aside:
    """Have everything logged that way from now on; return the handler, which closes at exit."""
    handler = Aside(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


def _shown(mark: str) -> str:
    """Return a character as it is, or escaped if it would end the line or move the cursor."""
    return mark if mark.isprintable() else ascii(mark)[1:-1]


def _plain(value: object) -> str:
    """Return a value so that it can neither end the line nor pass for another field."""
    text = str(value)
    if text and text.isprintable() and not any(mark in text for mark in ' ="'):
        return text
    return orjson.dumps(text).decode() if text.isprintable() else ascii(text)
