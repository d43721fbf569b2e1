"""Processes under measurement: started alone or with children, and what they use of the machine."""

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_S = 10.0


@dataclass
class Process:
    """A program and all that it starts. It leads a session of its own, and ends with it."""

    name: str
    command: list[str]
    log: Path
    cores: Collection[int]
    environment: Mapping[str, str] = field(default_factory=dict)
    _popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.sched_setaffinity(self._popen.pid, self.cores)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def stop(self) -> None:
        """End it and its children: politely, then not."""
        if self._popen is None:
            return
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._popen.pid, sent)  # its own group, which it leads
                self._popen.wait(STOP_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def cpu_s(self) -> float:
        """Return the CPU seconds, user and system, that it and its children have used."""
        total = 0.0
        for pid in self.pids():
            try:
                # Linux: the clock of another process's CPU time, in nanoseconds, all threads.
                total += time.clock_gettime((~pid << 3) | 2)
            except OSError:
                continue  # it has just ended
        return total

    def rss_bytes(self) -> int:
        """Return the resident memory of it and its children, in bytes."""
        total = 0
        for pid in self.pids():
            try:
                statm = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
            except OSError:
                continue
            total += int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def pids(self) -> list[int]:
        """Return its process id and those of its children."""
        if self._popen is None:
            return []
        leader = self._popen.pid
        return [leader, *(pid for pid, session in _sessions() if session == leader != pid)]


def _sessions() -> list[tuple[int, int]]:
    """Return every process on the machine with its session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_bytes()
            except OSError:
                continue
            found.append((int(entry), int(stat.rpartition(b")")[2].split()[3])))
    return found


def stolen_share(before: tuple[float, float]) -> tuple[tuple[float, float], float]:
    """Return the machine's clock now, and the share of it that the host took since `before`."""
    with Path("/proc/stat").open(encoding="ascii") as file:
        numbers = [int(number) / TICKS_PER_S for number in file.readline().split()[1:9]]
    total, stolen = sum(numbers), numbers[7]
    span = total - before[0]
    return (total, stolen), (stolen - before[1]) / span if span > 0 else 0.0
