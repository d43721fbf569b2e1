"""Runs plans under policies, one after the other: sets the policy, waits for quiet, fires.

The second asyncio shell besides `runner`: it decides nothing but the order of runs.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from loadgen.plan import Plan
from loadgen.records import Run, WorkflowRecord
from loadgen.runner import Target, run

ADMIN_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
IDLE_POLL_S = 0.1


class TargetError(RuntimeError):
    """The server cannot be reached or refuses what a sweep needs; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy of the gateway, as the command line names it: `name` or `name:alpha=0.3`."""

    label: str
    name: str
    alpha: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Read a policy; ValueError says what is wrong with it."""
        name, colon, setting = text.partition(":")
        if not name:
            raise ValueError("a policy's name is empty")
        if not colon:
            return cls(label=text, name=name)
        key, _, value = setting.partition("=")
        try:
            alpha = float(value)
        except ValueError:
            alpha = -1.0
        if key != "alpha" or not 0 <= alpha <= 1:
            raise ValueError(f"'{text}': after the colon comes alpha=A with A between 0 and 1")
        return cls(label=text, name=name, alpha=alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to come."""

    plan: Plan
    policy: Policy | None
    """None: the server stays as it is."""
    label: str


def interleaved(plans: Sequence[Plan], policies: Sequence[Policy], label: str) -> list[Job]:
    """Return every plan under every policy, the first policy changing from plan to plan.

    What drifts in the course of a sweep (caches, what the gateway has learned, the machine) is
    so spread over the policies. Without policies, each plan runs once under `label`.
    """
    if not policies:
        return [Job(plan=plan, policy=None, label=label) for plan in plans]
    jobs: list[Job] = []
    for number, plan in enumerate(plans):
        first = number % len(policies)
        jobs.extend(
            Job(plan=plan, policy=policy, label=policy.label)
            for policy in (*policies[first:], *policies[:first])
        )
    return jobs


async def sweep(
    jobs: Sequence[Job],
    target: Target,
    admin_headers: dict[str, str],
    runs: list[Run],
    *,
    on_start: Callable[[Job], None],
    on_workflow: Callable[[WorkflowRecord], None],
) -> None:
    """Run the jobs in order, appending to `runs` as each begins."""
    process_id = uuid.uuid4().hex[:8]
    async with target.session() as session:
        gateway = _Gateway(session, target.url, admin_headers)
        for number, job in enumerate(jobs):
            if job.policy is not None:
                await gateway.until_idle()
                await gateway.set_policy(job.policy)
            on_start(job)
            current = Run(
                policy=job.label,
                qps=job.plan.qps,
                seed=job.plan.seed,
                plan=job.plan.digest,
                planned=len(job.plan.workflows),
            )
            runs.append(current)
            run_id = f"{process_id}-{number}"
            await run(job.plan, target, session, current, run_id=run_id, on_workflow=on_workflow)


async def model_at(url: str, headers: dict[str, str], wanted: str | None = None) -> str:
    """Return the model to measure: the wanted one, or else the first that the server lists.

    TargetError if the server lists others only. One that lists none may have the wanted one.
    """
    try:
        listed = await _models(url, headers)
    except TargetError:
        if wanted is None:
            raise
        return wanted
    if wanted is None or wanted in listed:
        return wanted or listed[0]
    raise TargetError(f"--model: {url}/v1/models lists no '{wanted}', only {', '.join(listed)}")


async def _models(url: str, headers: dict[str, str]) -> list[str]:
    timeout = aiohttp.ClientTimeout(total=ADMIN_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        told = await _ask(session, "GET", f"{url}/v1/models", headers)
    try:
        listed = [str(model["id"]) for model in told["data"]]
    except (KeyError, TypeError):
        listed = []
    if not listed:
        raise TargetError(f"{url}/v1/models lists no model: give one with --model")
    return listed


class _Gateway:
    """The gateway's admin API, as far as a sweep needs it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> None:
        self._session = session
        self._url = url
        self._headers = headers

    async def set_policy(self, policy: Policy) -> None:
        body: dict[str, object] = {"name": policy.name}
        if policy.alpha is not None:
            body["alpha"] = policy.alpha
        await _ask(self._session, "PUT", f"{self._url}/admin/policy", self._headers, body)

    async def until_idle(self) -> None:
        """Wait until nothing is queued or running; TargetError if that takes too long."""
        for _ in range(int(IDLE_TIMEOUT_S / IDLE_POLL_S)):
            if not await self._is_busy():
                return
            await asyncio.sleep(IDLE_POLL_S)
        raise TargetError(
            f"{self._url} is still busy {IDLE_TIMEOUT_S:.0f} s after the run before: "
            "is anyone else using it?"
        )

    async def _is_busy(self) -> bool:
        state = await _ask(self._session, "GET", f"{self._url}/admin/state", self._headers)
        return bool(state.get("queued", 0) or state.get("in_flight", 0))


async def _ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: dict[str, str],
    body: dict[str, object] | None = None,
) -> Any:
    timeout = aiohttp.ClientTimeout(total=ADMIN_TIMEOUT_S)
    try:
        async with session.request(
            method, url, json=body, headers=headers, timeout=timeout
        ) as response:
            text = await response.text()
            if response.status == 404 and "/admin/" in url:
                raise TargetError(
                    f"{method} {url} was answered 404: only a HexSage gateway can be given "
                    "--policies; without them any server is measured as it is"
                )
            if response.status >= 400:
                raise TargetError(f"{method} {url} was answered {response.status}: {_words(text)}")
            return await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise TargetError(f"{method} {url} failed: {error or type(error).__name__}") from error
    except ValueError as error:
        raise TargetError(f"{method} {url} was not answered with JSON: {error}") from error


def _words(text: str) -> str:
    """Return the message of an OpenAI-like error body, or the beginning of whatever it is."""
    try:
        message = orjson.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = text
    return str(message)[:500]
