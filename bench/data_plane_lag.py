"""`hexsage serve` with a clock that notes how late the event loop is; says so when it ends.

python bench/data_plane_lag.py serve --config FILE ...      # the file lag.json, where it runs
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

from gateway.__main__ import main
from gateway.cli import server

PERIOD_S = 0.002
MAX_SAMPLES = 200_000


class Watched(server.Server):
    """The server, and a timer that should fire every 2 ms."""

    lags_s: list[float]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and to watch."""
        await super().startup(sockets)
        self.lags_s = []
        self._watch_from(asyncio.get_running_loop())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Write down what was seen."""
        lags_ms = sorted(lag * 1e3 for lag in self.lags_s)
        figures = {
            f"p{share}": lags_ms[min(int(len(lags_ms) * share / 100), len(lags_ms) - 1)]
            for share in (50, 99, 99.9)
        }
        text = json.dumps({**figures, "samples": len(lags_ms)})
        Path("lag.json").write_text(text, encoding="utf-8")  # noqa: ASYNC240 - it is over
        await super().shutdown(sockets)

    def _watch_from(self, loop: asyncio.AbstractEventLoop) -> None:
        due_at = loop.time() + PERIOD_S
        loop.call_at(due_at, self._look, loop, due_at)

    def _look(self, loop: asyncio.AbstractEventLoop, due_at: float) -> None:
        if len(self.lags_s) < MAX_SAMPLES:
            self.lags_s.append(max(loop.time() - due_at, 0.0))
        self._watch_from(loop)


if __name__ == "__main__":
    server.Server = Watched  # type: ignore[misc]
    sys.exit(main())
