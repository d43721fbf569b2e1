"""Clients: calls of every kind, and what became of each as its client saw it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import aiohttp

MODEL = "m1"
IDLE_S = 2.0
"""Clients keep a connection that nobody uses for so long."""
_ERROR = re.compile(rb'^data: (\{"error".*)$', re.MULTILINE)
WORDS = "how many ships sailed in May and which of them came back before the summer ended "


@dataclass(slots=True, kw_only=True)
class Told:
    """One call."""

    tag: str
    """Stands in its prompt, where every engine sees it."""
    workflow: str
    stage: str
    """These two together name the call in the gateway's decision log."""
    sent_at: float
    first_byte_at: float | None = None
    ended_at: float = 0.0
    outcome: str = "lost"
    """completed, broken (an error in its stream), refused (a status), left, lost (no answer)."""
    code: str = ""
    status: int = 0
    retry_after_s: float | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Its workflow and stage."""
        return self.workflow, self.stage


@dataclass
class Clients:
    """Sends calls to one gateway; `told` is everything that came of it."""

    http: aiohttp.ClientSession
    url: str
    told: list[Told] = field(default_factory=list)
    prefix: str = "c"
    """Of workflow ids: two groups of clients must not share any."""
    _count: int = 0

    async def call(
        self,
        *,
        stream: bool,
        key: str | None = None,
        workflow: str | None = None,
        stage: str = "alone",
        final: bool = True,
        words: int = 10,
        max_tokens: int = 64,
        leaves_after_s: float | None = None,
    ) -> Told:
        """Send one call and note what became of it."""
        self._count += 1
        tag = f"tag-{self.prefix}-{self._count}"
        loop = asyncio.get_running_loop()
        told = Told(tag=tag, workflow=workflow or tag, stage=stage, sent_at=loop.time())
        self.told.append(told)
        content = f"{tag} " + (WORDS * (words // 15 + 1))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "stream": stream,
        }
        headers = {"x-workflow-id": told.workflow, "x-workflow-stage": stage}
        if final:
            headers["x-workflow-final"] = "true"
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        try:
            async with asyncio.timeout(leaves_after_s):
                await self._ask(told, body, headers)
        except TimeoutError:
            told.outcome = "left"
        except aiohttp.ClientError as error:
            told.code = type(error).__name__
        told.ended_at = loop.time()
        return told

    async def _ask(self, told: Told, body: object, headers: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        url = f"{self.url}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as reply:
            told.status = reply.status
            pieces = []
            async for piece in reply.content.iter_any():
                if told.first_byte_at is None and reply.status == 200:
                    told.first_byte_at = loop.time()
                pieces.append(piece)
        said = b"".join(pieces)
        broken = _ERROR.search(said)
        if told.status == 200 and broken is None:
            told.outcome = "completed"
            return
        told.outcome = "broken" if broken else "refused"
        error = json.loads(broken[1] if broken else said)["error"]
        told.code = str(error["code"])
        if "retry-after-ms" in reply.headers:
            told.retry_after_s = int(reply.headers["retry-after-ms"]) / 1000

    async def workflow(self, random: Random, key: str | None) -> None:
        """One call, two side by side, one to end with; a call that fails ends it."""
        self._count += 1
        name = f"wf-{self.prefix}-{self._count}"

        async def stage(stage: str, *, final: bool = False) -> bool:
            told = await self.call(
                stream=random.random() < 0.5,
                key=key,
                workflow=name,
                stage=stage,
                final=final,
                words=random.randint(10, 200),
                max_tokens=random.randint(8, 64),
            )
            return told.outcome == "completed"

        is_fine = await stage("plan") and all(await asyncio.gather(stage("a"), stage("b")))
        if is_fine and await stage("answer", final=True):
            return
        # Nobody else would say that it is over.
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with self.http.post(f"{self.url}/v1/workflows/{name}/complete", headers=headers):
            pass


async def at_rate(
    rate: float, seconds: float, random: Random, send: Callable[[], Awaitable[object]]
) -> None:
    """Send calls at Poisson instants, whatever becomes of them; return when all have ended."""
    loop = asyncio.get_running_loop()
    at = loop.time()
    ends_at = at + seconds
    async with asyncio.TaskGroup() as tasks:
        while (at := at + random.expovariate(rate)) < ends_at:
            await asyncio.sleep(max(at - loop.time(), 0))
            tasks.create_task(_swallow(send()))


async def _swallow(sent: Awaitable[object]) -> None:
    await sent


def session() -> aiohttp.ClientSession:
    """Return a client without limits of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
    )


async def in_a_circle(workers: int, seconds: float, send: Callable[[], Awaitable[object]]) -> None:
    """Let so many clients send one call after the other for so long; return when all have ended."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds

    async def work() -> None:
        while loop.time() < ends_at:
            await send()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed; there must be some."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
