"""The decision log itself: the last of it in memory, all of it in a file. It holds no prompts."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from gateway.core.commands import Command, Stop
from gateway.core.events import Arrived, Event

MAX_RECENT = 1000
MAX_UNWRITTEN = 100_000
"""Lines that may wait for a slow disk before they are dropped, and counted."""

# orjson would read a compiled dataclass as if it were an interpreted one, and crash.
ENCODING = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS

log = logging.getLogger(__name__)


def lines_of(now: float, event: Event, commands: Sequence[Command]) -> list[dict[str, object]]:
    """Return what is worth keeping of one event and the commands that followed."""
    lines: list[dict[str, object]] = []
    if isinstance(event, Arrived):
        lines.append({"at": now, "type": "Arrived", **_arrival(event)})
    lines += [
        {"at": now, "type": type(command).__name__, "command": command}
        for command in commands
        if not isinstance(command, Stop)
    ]
    return lines


class Recent:
    """The latest decisions, newest last, for people who look. An observer.

    They are put into words when somebody asks: most of the time nobody does.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Event, Sequence[Command]]] = deque(maxlen=MAX_RECENT)

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Keep it."""
        if commands:
            self._seen.append((now, event, commands))

    def latest(self, count: int) -> Sequence[Mapping[str, object]]:
        """Return the latest lines, newest last, ready to be encoded by `encode`."""
        if count <= 0:
            return []
        seen = list(self._seen)[-count:]  # each has a line at least
        return [line for one in seen for line in lines_of(*one)][-count:]


class DecisionLog:
    """Appends every decision to a file as JSON lines. An observer; a thread does the writing."""

    def __init__(self, path: Path, now: float) -> None:
        self._file = path.open("ab")
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_UNWRITTEN)
        self._writer = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._writer.start()
        self.dropped = 0
        """Lines lost because the disk did not take them."""
        # Instants are monotonic; this line ties them to the calendar.
        self._put({"at": now, "type": "Opened", "time": datetime.now(UTC).isoformat()})

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Have it written, soon."""
        for line in lines_of(now, event, commands):
            self._put(line)

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._writer.join()
        try:
            self._file.close()
        except OSError as error:
            self._lose(f"cannot be written: {error}")

    def _put(self, line: Mapping[str, object]) -> None:
        try:
            self._lines.put_nowait(encode(line) + b"\n")
        except queue.Full:
            self._lose("is written too slowly: the disk does not keep up")

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(line)
                if self._lines.empty():
                    self._file.flush()
            except OSError as error:
                self._lose(f"cannot be written: {error}")

    def _lose(self, why: str) -> None:
        """Count a lost line; the first is told of, for there may be thousands a second."""
        if not self.dropped:
            log.warning("lines are lost: the decision log %s", why)
        self.dropped += 1


def encode(value: object) -> bytes:
    """Return decisions as JSON."""
    return orjson.dumps(value, default=_plain, option=ENCODING)


def _plain(value: object) -> object:
    if is_dataclass(value):
        told = (field.name for field in fields(value))
        return {name: getattr(value, name) for name in told if not name.startswith("_")}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in the decision log")


def _arrival(event: Arrived) -> dict[str, object]:
    request = event.request
    ref = request.workflow
    return {
        "request_id": request.id,
        "model": request.model,
        "tenant": request.tenant,
        "prompt_tokens": request.prompt_tokens,
        "predicted_output_tokens": request.output.mean_tokens,
        "workflow": list(ref.key) if ref else None,
        "workflow_name": ref.name if ref else None,
        "stage": ref.stage if ref else None,
        "template": f"{request.prefix[-1].key:x}" if request.prefix else None,
        "template_tokens": sum(segment.tokens for segment in request.prefix),
        "deadline_at": request.deadline_at,
        "first_seen_at": request.first_seen_at,
        "priority": request.priority,
    }
