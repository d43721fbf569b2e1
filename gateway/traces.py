"""Traces: the observer of decisions and what sends its spans away, if tracing is asked for."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from random import Random
from secrets import randbits
from typing import TYPE_CHECKING

from gateway.config.serving import TelemetryEntry
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, RequestId
from gateway.mistakes import ConfigError
from gateway.runtime.clock import Clock
from gateway.runtime.driver import Observer
from gateway.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from gateway.telemetry.otlp import OtlpExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INSTALL = "needs OpenTelemetry: pip install 'hexsage[otel]'"

log = logging.getLogger(__name__)


class Traces:
    """A gateway's traces, or none. They must be closed, off the path of requests."""

    def __init__(
        self,
        entry: TelemetryEntry,
        scheduler: Scheduler,
        clock: Clock,
        kind_of: Callable[[BackendId], str | None],
    ) -> None:
        """Raise ConfigError if the file wants traces and OpenTelemetry is not installed."""
        self._clock = clock
        self._exporter = exporter_of(entry)
        self._tracing: Tracing | None = None
        self.introduce: Callable[[RequestId, str, str], None] | None = None
        """Is to be told of each call before it arrives; None: there are no traces."""
        self.traceparent: Callable[[RequestId], str | None] | None = None
        """The header for a call's attempt under way."""
        self.observers: list[Observer] = []
        if self._exporter is not None:
            tracing = self._tracing = Tracing(
                self._exporter,
                now_ns=time.time_ns,
                random=Random(randbits(128)),
                is_open=lambda key: scheduler.workflows.get(key) is not None,
                kind_of=kind_of,
            )
            self.introduce, self.traceparent = tracing.introduce, tracing.traceparent
            self.observers.append(tracing.observe)

    async def close(self) -> None:
        """Send what is left."""
        if self._tracing is not None:
            self._tracing.close(self._clock.now())
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.close)


def are_wanted(entry: TelemetryEntry) -> bool:
    """Return whether there is a place for traces to go, and nothing that forbids them."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return False
    return entry.endpoint is not None or any(os.environ.get(name) for name in ENDPOINTS)


def exporter_of(entry: TelemetryEntry) -> "OtlpExporter | None":
    """Return what sends spans away; None if nobody wants any.

    Where only the environment wants some, which may be a whole cluster's, and OpenTelemetry is not
    installed, the gateway serves without.
    """
    if not are_wanted(entry):
        return None
    try:
        from gateway.telemetry.otlp import OtlpExporter
    except ImportError:
        if entry.endpoint is not None:
            raise ConfigError([f"telemetry.endpoint: {INSTALL}"]) from None
        log.warning("no traces: OTEL_EXPORTER_OTLP_ENDPOINT %s", INSTALL)
        return None
    return OtlpExporter(entry.endpoint)
