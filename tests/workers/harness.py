"""A scheduler process's gateway and its workers, all in one loop, over real Unix sockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.predictor.predictor import LengthPredictor, PredictorSettings
from gateway.workers.hub import Hub
from gateway.workers.scheduler import hub_of
from gateway.workers.worker import Worker
from tests.api.harness import Reply, Running, overhearing, serving_app, settings_for
from tests.backends.fake_backend import FakeBackend

HUB, HTTP = "hub.sock", "http.sock"


@dataclass
class Scheduler:
    """The scheduler process's part."""

    gateway: Gateway
    hub: Hub


@asynccontextmanager
async def a_scheduler(settings: Settings, directory: Path) -> AsyncIterator[Scheduler]:
    """Run a scheduler process's part until the block ends."""
    gateway = Gateway(settings, predictor=LengthPredictor(PredictorSettings(is_semantic=False)))
    hub = hub_of(gateway, settings)
    async with serving_app(gateway.app, directory / HTTP):
        await hub.listen(directory / HUB)
        try:
            yield Scheduler(gateway, hub)
        finally:
            hub.close()


@dataclass
class Asked(Running):
    """A gateway that is asked through a worker.

    The books may be a moment behind what a client has got; tests that look at them at once are
    given what they show when all that the worker has said so far has been heard.
    """

    worker: Worker | None = None

    async def request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request; return everything that comes back."""
        reply = await super().request(method, path, data, headers)
        assert self.worker is not None
        if self.worker.desk.is_connected:
            await self.worker.desk.keeper("nothing: its answer comes after all that was said")
        return reply


@dataclass
class Crowd:
    """One gateway and its workers, each with a port of its own so that tests can choose."""

    scheduler: Scheduler
    directory: Path
    workers: list[Worker] = field(default_factory=list)
    runnings: list[Asked] = field(default_factory=list)

    def __getitem__(self, number: int) -> Asked:
        return self.runnings[number]

    @property
    def gateway(self) -> Gateway:
        """The one that decides."""
        return self.scheduler.gateway


@asynccontextmanager
async def a_crowd(
    *engines: FakeBackend, workers: int = 2, **settings: object
) -> AsyncIterator[Crowd]:
    """Run workers in front of these engines; afterwards the oracle is asked through each."""
    chosen = settings_for(*engines, **settings)
    with TemporaryDirectory() as place, overhearing() as ear:
        directory = Path(place)
        async with AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(a_scheduler(chosen, directory))
            crowd = Crowd(scheduler, directory)
            for _ in range(workers):
                worker = Worker(chosen, directory / HUB, directory / HTTP)
                port = await stack.enter_async_context(serving_app(worker.app))
                session = await stack.enter_async_context(
                    aiohttp.ClientSession(auto_decompress=True)
                )
                crowd.workers.append(worker)
                crowd.runnings.append(
                    Asked(scheduler.gateway, engines, session, port, worker=worker)
                )
            yield crowd
            for running in crowd.runnings:
                await running.quiesce()
                for wire in running.wires:
                    wire.close()
    assert ear.errors == []
    assert "secret" not in ear.text


@asynccontextmanager
async def through_a_worker(*engines: FakeBackend, **settings: object) -> AsyncIterator[Running]:
    """Be what `tests.api.harness.a_gateway` is, with a worker in between."""
    async with a_crowd(*engines, workers=1, **settings) as crowd:
        yield crowd[0]
