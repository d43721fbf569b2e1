"""Fires a plan on time, open loop, and records what happened.

Workflows start when the plan says, however many are still running. Inside one, the calls of a
step go together and the next step follows when all are back and the tool time is over. Everything
recorded is in engine seconds: wall seconds times `speed`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import orjson

from loadgen import prompts
from loadgen.plan import Plan, PlannedCall, PlannedWorkflow
from loadgen.records import OK, CallRecord, Run, WorkflowRecord
from loadgen.stream import StreamWatch

KEEP_ALIVE_S = 2.0
"""Below the 5 s after which uvicorn hangs up: a connection must not die as it is written to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test, and how calls are put to it."""

    url: str
    model: str
    headers: dict[str, str]
    """Sent with every call, for instance the API key."""
    speed: float = 1.0
    """Engines run this many times faster than the times in the plan."""
    is_streaming: bool = False
    sets_lengths: bool = True
    """Tell emulated engines how long the answer is to be; real engines decide themselves."""
    timeout_s: float = 1800.0
    """Of one call, in engine seconds."""
    max_connections: int = 2000

    def session(self) -> aiohttp.ClientSession:
        """Open the connections of one or more runs."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self.max_connections, keepalive_timeout=KEEP_ALIVE_S, use_dns_cache=True
            ),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s / self.speed),
            headers=self.headers,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )


async def run(
    plan: Plan,
    target: Target,
    session: aiohttp.ClientSession,
    into: Run,
    *,
    run_id: str,
    on_workflow: Callable[[WorkflowRecord], None] = lambda _: None,
) -> None:
    """Send a whole plan and append to `into` as it goes, so that an interrupted run is kept.

    `run_id` must be new to the server: ids of workflows and calls begin with it.
    """
    sender = _Sender(target, session, into, run_id)

    async def one(workflow: PlannedWorkflow) -> None:
        record = await sender.workflow(workflow)
        into.workflows.append(record)
        on_workflow(record)

    async with asyncio.TaskGroup() as tasks:
        for workflow in plan.workflows:
            await sender.until(workflow.arrival_s)
            tasks.create_task(one(workflow))


class _Sender:
    """Carries the clock and the connection of one run."""

    def __init__(
        self, target: Target, session: aiohttp.ClientSession, into: Run, run_id: str
    ) -> None:
        self._target = target
        self._session = session
        self._run = into
        self._run_id = run_id
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()
        self._url = f"{target.url}/v1/chat/completions"

    def now_s(self) -> float:
        """Engine seconds since the run began."""
        return self._engine_s(self._clock())

    def _engine_s(self, clock_at: float) -> float:
        return (clock_at - self._started_at) * self._target.speed

    async def until(self, instant_s: float) -> None:
        """Sleep until an instant of the plan; return at once when it is past."""
        wait_s = (instant_s - self.now_s()) / self._target.speed
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def workflow(self, workflow: PlannedWorkflow) -> WorkflowRecord:
        """Run the steps in order; a failed call ends the workflow with its step."""
        ready_at_s = workflow.arrival_s
        outcome = OK
        for number, step in enumerate(workflow.steps):
            due_at_s = ready_at_s + step.tool_s
            await self.until(due_at_s)
            records = await asyncio.gather(
                *(self._call(workflow, call, number, due_at_s) for call in step.calls)
            )
            ready_at_s = self.now_s()
            outcome = next((record.outcome for record in records if record.outcome != OK), OK)
            if outcome != OK:
                break
        return WorkflowRecord(
            id=workflow.id,
            index=workflow.index,
            name=workflow.name,
            arrival_s=workflow.arrival_s,
            ended_at_s=ready_at_s,
            deadline_s=workflow.deadline_s,
            outcome=outcome,
        )

    async def _call(
        self, workflow: PlannedWorkflow, call: PlannedCall, step: int, due_at_s: float
    ) -> CallRecord:
        body = self._body(call)
        headers = self._headers(workflow, call)
        watch = StreamWatch() if self._target.is_streaming else None
        sent_at_s = self.now_s()
        answer = await self._send(body, headers, watch)
        ended_at_s = self.now_s()
        first_at = watch.first_at if watch else None
        record = CallRecord(
            id=call.id,
            workflow_id=workflow.id,
            workflow_index=workflow.index,
            step=step,
            stage=call.stage,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            usage_prompt_tokens=answer.prompt_tokens,
            usage_output_tokens=answer.output_tokens,
            due_at_s=due_at_s,
            sent_at_s=sent_at_s,
            first_token_at_s=None if first_at is None else self._engine_s(first_at),
            longest_gap_s=watch.longest_gap_s * self._target.speed if watch and first_at else None,
            ended_at_s=ended_at_s,
            outcome=answer.outcome,
            status=answer.status,
        )
        self._run.calls.append(record)
        return record

    def _headers(self, workflow: PlannedWorkflow, call: PlannedCall) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "x-request-id": f"{self._run_id}-{call.id}",
            "x-workflow-id": f"{self._run_id}-{workflow.id}",
            "x-workflow-name": workflow.name,
            "x-workflow-stage": call.stage,
            "x-workflow-deadline-ms": str(
                max(round(1000 * workflow.deadline_s / self._target.speed), 1)
            ),
        }
        if call.is_final:
            headers["x-workflow-final"] = "true"
        return headers

    def _body(self, call: PlannedCall) -> bytes:
        body: dict[str, object] = {
            "model": self._target.model,
            "messages": prompts.messages(call.pieces, self._run_id),
            "max_tokens": call.max_tokens,
        }
        if self._target.sets_lengths:
            body["vllm_xargs"] = {"out_len": call.output_tokens}
        if self._target.is_streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    async def _send(
        self, body: bytes, headers: dict[str, str], watch: StreamWatch | None
    ) -> "_Answer":
        status = None
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                status = response.status
                if watch is None or status != 200:
                    return _answer_of(status, await response.read())
                async for chunk in response.content.iter_any():
                    watch.feed(chunk, self._clock())
                return _streamed(watch)
        except TimeoutError:
            return _Answer("timeout", status)
        except aiohttp.ClientConnectorError:
            return _Answer("connect", status)
        except (aiohttp.ClientError, ConnectionError):
            return _Answer("reset", status)


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: str
    status: int | None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def _answer_of(status: int, body: bytes) -> _Answer:
    """Judge a whole answer: anything but a completion with its usage is a failure."""
    try:
        answer = orjson.loads(body)
        if status != 200:
            return _Answer(_refusal(status, answer), status)
        usage = answer["usage"]
        return _Answer(OK, status, int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
    except (ValueError, KeyError, TypeError):
        return _Answer("bad_answer" if status == 200 else f"http_{status}", status)


def _streamed(watch: StreamWatch) -> _Answer:
    if watch.error is not None:
        return _Answer(f"in_stream {watch.error}", 200)
    if not watch.is_complete:
        return _Answer("truncated", 200)
    return _Answer(OK, 200, watch.prompt_tokens, watch.output_tokens)


def _refusal(status: int, answer: object) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return f"http_{status} {code}" if isinstance(code, str) else f"http_{status}"
