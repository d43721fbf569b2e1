"""The scheduler process's composition: a gateway, and the hub by which workers reach it."""

from collections.abc import Collection

from gateway.api.endpoints import ENDPOINTS, passed_through
from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.workers.fleet import Fleet
from gateway.workers.hub import Hub


def hub_of(gateway: Gateway, settings: Settings) -> Hub:
    """Return a hub for a gateway that was just built."""
    paths = {**ENDPOINTS, **passed_through(settings.passthrough)}
    hub = Hub(
        gateway.driver,
        gateway.register,
        gateway.tenants,
        alpha=gateway.alpha,
        fleet=lambda: _fleet_of(gateway, paths),
        suspect=gateway.engines.suspect,
        traceparent=gateway.traces.traceparent,
        workers=settings.workers,
    )
    gateway.observers.append(hub.observe)
    gateway.workers = hub.gauges
    return hub


def _fleet_of(gateway: Gateway, paths: Collection[str]) -> Fleet:
    """Return what a gateway knows now; `paths` are those of the endpoints that there are."""
    engines = gateway.engines
    return Fleet(
        backends=tuple(engines.entries.values()),
        timeouts=engines.timeouts,
        models={
            name: tuple(sorted(engines.models_of(frozenset([name])))) for name in engines.entries
        },
        offers={path: tuple(sorted(engines.offering(path))) for path in paths},
        aliases=dict(gateway.aliases),
        model_timeouts=dict(gateway.model_timeouts),
        queue_timeouts=dict(gateway.queue_timeouts),
        keys=tuple(gateway.keys.entries) if gateway.keys is not None else (),
    )
