"""Watch: everything that is remembered for people who look, as one observer."""

from collections.abc import Sequence

from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.core.scheduler import Scheduler
from gateway.telemetry.decisions import Recent
from gateway.telemetry.requests import Requests
from gateway.telemetry.timelines import Timelines
from gateway.telemetry.trends import Trends


class Watch:
    """The latest decisions, requests and workflows, and the last half hour. All bounded."""

    def __init__(self, scheduler: Scheduler, now: float) -> None:
        self.started_at = now
        self.recent = Recent()
        self.requests = Requests(scheduler)
        self.timelines = Timelines()
        self.trends = Trends(scheduler.placement.policy, now)

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take it down."""
        self.recent.observe(now, event, commands)
        self.requests.observe(now, event, commands)
        self.timelines.observe(now, event, commands)
        self.trends.observe(now, event, commands)
