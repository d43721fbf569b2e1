"""Loop lag: how late the event loop gets round to what is due."""

import asyncio

from gateway.telemetry.histogram import SHORT, Histogram

EVERY_S = 0.1


class LoopLag:
    """Measures for as long as `watch` runs."""

    def __init__(self) -> None:
        self.seconds = Histogram(SHORT)

    async def watch(self) -> None:
        """Set a timer again and again and count how late it fires, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.seconds.observe(max(loop.time() - due_at, 0.0))
