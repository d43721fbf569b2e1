"""The kinds of engine there are to emulate, and what each must be able to say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.emulator.asks import Ask, Progress, Reply
from gateway.emulator.metrics import EngineCounters, EngineStatus
from gateway.emulator.options import EngineOptions
from gateway.emulator.tgi import TgiDialect
from gateway.emulator.vllm import VllmDialect

Headers = Mapping[bytes, bytes]


class Dialect(Protocol):
    """Reads requests and writes answers for one engine (pure)."""

    @property
    def generates(self) -> Mapping[str, Callable[..., Ask]]:
        """Paths that generate, and what reads their requests."""

    @property
    def keep_alive(self) -> tuple[bytes, float] | None:
        """What a silent stream carries, and after how many seconds of silence."""

    @property
    def reports_load(self) -> bool:
        """Whole answers bear a load report (ORCA) on demand."""

    @property
    def aborts_at_shutdown(self) -> bool:
        """What is running is cut off, rather than awaited."""

    def counters(self) -> EngineCounters:
        """Return fresh counters."""

    def authorize(self, path: str, headers: Headers) -> None:
        """Refuse a request without the API key where the engine wants one."""

    def plain(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        status: Callable[[], EngineStatus],
    ) -> Reply:
        """Answer whatever generates nothing."""

    def busy(self) -> Reply:
        """The queue is full."""

    def dead(self) -> Reply:
        """The engine has died."""

    def failed(self) -> Reply:
        """Something went wrong with this request alone."""

    def stopping(self) -> Reply:
        """The engine is shutting down."""

    def in_stream(self, reply: Reply, ask: Ask) -> bytes:
        """Return an error as it is told on a stream."""

    def stream_headers(self, ask: Ask) -> Sequence[tuple[bytes, bytes]]:
        """Return what leads a stream."""

    def answer(self, ask: Ask, progress: Sequence[Progress]) -> Reply:
        """Return the whole answer."""

    def frames(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return the events for what has come since the last time; now it is told."""

    def ending(self, ask: Ask, progress: Sequence[Progress]) -> bytes:
        """Return what ends the stream."""


DIALECTS: Mapping[str, Callable[[EngineOptions], Dialect]] = {
    "tgi": TgiDialect,
    "vllm": VllmDialect,
}
