"""Probe: looks at one engine every few seconds and says when what it sees changes."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import aiohttp
import orjson

from gateway.backends.engine_metrics import EngineMetrics, read_metrics
from gateway.backends.http_client import base_url
from gateway.backends.offers import read_openapi

MAX_BYTES = 4 * 1024 * 1024
FAILURES_UNTIL_DOWN = 3
"""One late answer of a busy engine is no death."""
DOWN_INTERVAL_S = 1.0
"""One that is down is looked at this often, if not more often anyway: it is missed."""
MAX_NAMED = 5
"""Models that the log names when an engine comes up."""
JITTER = 0.1
"""Probes of a large fleet must not march in step."""

log = logging.getLogger(__name__)


class Unhealthy(Exception):
    """The engine did not pass the probe; says why."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one probe saw."""

    models: Mapping[str, int | None] = field(default_factory=dict)
    """What it serves, with each model's longest context in tokens."""
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    max_in_flight: int | None = None
    """Calls that it takes at once, running or queued; None: it does not say."""
    paths: frozenset[str] | None = None
    """What its API has, parameters nameless; None: it does not say."""


class Probe:
    """Watches one engine. `on_change` hears of it at the first look and at each change, `on_load`
    at each look how many calls wait in it (None: it does not say).

    It says None when the engine is down: it failed several probes in a row, or a call could not
    even connect (`suspect`). One good probe brings it back.
    """

    def __init__(
        self,
        name: str,
        url: str,
        on_change: Callable[[Vitals | None], None],
        on_load: Callable[[int | None], None] = lambda _: None,
        *,
        api_key: str | None = None,
        interval_s: float = 5.0,
        timeout_s: float = 2.0,
        has_info: bool = False,
        reads_openapi: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.vitals: Vitals | None = None
        """What the last good probe saw; None while it is down."""
        self._name = name
        self._base = base_url(url)
        self._on_change = on_change
        self._on_load = on_load
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._interval_s = interval_s
        self._has_info = has_info
        """It tells its limits at /info, as TGI does, and not in its list of models."""
        self._reads_openapi = reads_openapi
        self._tls: ssl.SSLContext | bool = tls or True
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._random = Random(name)
        self._failures = 0
        self._told: tuple[object, ...] | None = None
        self._look_now = asyncio.Event()
        self.has_looked = asyncio.Event()
        """The first probe is over, whatever it saw."""

    async def run(self) -> None:
        """Probe until cancelled."""
        async with aiohttp.ClientSession(
            timeout=self._timeout,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(ssl=self._tls),
        ) as session:
            while True:
                await self._look(session)
                self.has_looked.set()
                self._look_now.clear()
                pause_s = self._interval_s
                if self.vitals is None:
                    pause_s = min(pause_s, DOWN_INTERVAL_S)
                pause_s *= self._random.uniform(1 - JITTER, 1 + JITTER)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._look_now.wait()
                except TimeoutError:
                    continue
                # A call met a dead engine: see soon whether it lives, but do not hammer it.
                await asyncio.sleep(min(self._interval_s, 0.5))

    def suspect(self) -> None:
        """A call could not connect: the engine is down until a probe says otherwise."""
        if self.vitals is not None:
            log.warning("backend %s is down: a call could not connect to it", self._name)
            self._failures = FAILURES_UNTIL_DOWN
            self._tell(None)
            self._look_now.set()

    async def _look(self, session: aiohttp.ClientSession) -> None:
        try:
            vitals = await self._examine(session)
        except (aiohttp.ClientError, OSError, TimeoutError, Unhealthy) as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("backend %s: probe failed: %s", self._name, _reason(error))
            if self._failures >= FAILURES_UNTIL_DOWN or self.vitals is None:
                if self.vitals is not None:
                    log.warning("backend %s is down: %d probes failed", self._name, self._failures)
                self._tell(None)
            return
        self._failures = 0
        if self.vitals is None:
            models = ", ".join(repr(name) for name in sorted(vitals.models)[:MAX_NAMED])
            log.info("backend %s is up and lists %s", self._name, models or "no models")
        self._tell(vitals)

    async def _examine(self, session: aiohttp.ClientSession) -> Vitals:
        status, _ = await self._get(session, "/health")
        # Engines without the route are judged by their list of models.
        if status != 404 and not 200 <= status < 300:
            raise Unhealthy(f"/health answered {status}")
        status, body = await self._get(session, "/v1/models")
        if status in (401, 403):
            log.warning("backend %s refuses our key (%d on /v1/models)", self._name, status)
        models = _models(body) if status == 200 else {}
        max_in_flight = None
        if self._has_info:
            longest, max_in_flight = await self._limits(session)
            models = dict.fromkeys(models, longest)
        paths = await self._paths(session) if self._reads_openapi else None
        return Vitals(models, await self._metrics(session), max_in_flight, paths)

    async def _limits(self, session: aiohttp.ClientSession) -> tuple[int | None, int | None]:
        """Return the longest context and the most calls at once, where the engine says."""
        try:
            status, body = await self._get(session, "/info")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None, None
        return _limits(body) if status == 200 else (None, None)

    async def _paths(self, session: aiohttp.ClientSession) -> frozenset[str] | None:
        """Return what its API has, read when it comes up: the document is large."""
        if self.vitals is not None:
            return self.vitals.paths
        try:
            status, body = await self._get(session, "/openapi.json")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        return read_openapi(body) if status == 200 else None

    async def _metrics(self, session: aiohttp.ClientSession) -> EngineMetrics:
        """Return the engine's figures; an engine without any is no less healthy."""
        try:
            status, body = await self._get(session, "/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return EngineMetrics()
        return read_metrics(body.decode("utf-8", "replace")) if status == 200 else EngineMetrics()

    async def _get(self, session: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
        async with session.get(self._base + path, allow_redirects=False) as response:
            body = bytearray()
            while len(body) < MAX_BYTES and (piece := await response.content.readany()):
                body += piece
            return response.status, bytes(body)

    def _tell(self, vitals: Vitals | None) -> None:
        self.vitals = vitals
        # Identity and size hardly ever change; load does with each look.
        seen = None
        if vitals is not None:
            seen = (
                frozenset(vitals.models),
                vitals.metrics.kv_tokens,
                vitals.max_in_flight,
                vitals.paths,
            )
        if (seen,) != self._told:
            self._told = (seen,)
            self._on_change(vitals)
        if vitals is not None:
            self._on_load(vitals.metrics.waiting)


def _reason(error: Exception) -> str:
    """Return what kept a probe from an answer; aiohttp talks of TLS where there is none."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port} ({error.os_error.strerror})"
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))


def _models(body: bytes) -> dict[str, int | None]:
    """Return the models of a `/v1/models` answer with their longest contexts."""
    try:
        listed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    cards = listed.get("data") if isinstance(listed, dict) else None
    models: dict[str, int | None] = {}
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, dict) and isinstance(card.get("id"), str):
            longest = card.get("max_model_len")
            models[card["id"]] = longest if isinstance(longest, int) else None
    return models


def _limits(body: bytes) -> tuple[int | None, int | None]:
    """Return the longest context and the most calls at once that TGI's /info tells."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        return None, None
    longest, calls = said.get("max_total_tokens"), said.get("max_concurrent_requests")
    return (
        longest if isinstance(longest, int) else None,
        calls if isinstance(calls, int) and calls > 0 else None,
    )
