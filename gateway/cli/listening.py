"""How clients are listened to: TLS, limits of connections, and how many there may be."""

import logging
import resource
import ssl
from contextlib import suppress
from math import ceil
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from gateway.api.access import AccessLog
from gateway.api.guard import ConnectionLimits
from gateway.api.protocol import guarded
from gateway.config.settings import Settings
from gateway.mistakes import ConfigError
from gateway.runtime.clock import MonotonicClock

RESERVED_FILES = 128

log = logging.getLogger(__name__)


def possible_connections(wished: int) -> int:
    """Return how many clients may be connected: as configured, or what file handles allow.

    Each may need a handle for itself and one for its engine; some are for everything else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return wished
    possible = max((soft - RESERVED_FILES) // 2, 1)
    if possible < wished:
        log.warning("%d file handles are enough for %d connections", soft, possible)
    return min(possible, wished)


def server_config(
    app: ASGIApp,
    settings: Settings,
    host: str,
    port: int,
    max_connections: int,
    lifespan: Literal["on", "off"] = "off",
) -> uvicorn.Config:
    """Return how an application is served to clients; ConfigError if its TLS files are none."""
    limits = settings.limits
    tls = settings.tls
    config = uvicorn.Config(
        AccessLog(app, MonotonicClock()) if settings.log.access else app,
        host=host,
        port=port,
        loop="uvloop",
        http=guarded(
            ConnectionLimits(
                max_connections=max_connections,
                max_header_bytes=limits.max_header_bytes,
                header_timeout_s=limits.header_timeout_s,
                body_timeout_s=limits.body_timeout_s,
            )
        ),
        ws="none",
        lifespan=lifespan,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        log_level=settings.log.level,
        timeout_keep_alive=ceil(limits.keep_alive_s),
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        ssl_certfile=tls.cert_file if tls else None,
        ssl_keyfile=tls.key_file if tls else None,
        ssl_ca_certs=str(tls.client_ca_file) if tls and tls.client_ca_file else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca_file else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError([f"tls: {error}"]) from None
    return config
